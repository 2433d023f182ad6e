"""Simulation of one step of the real engine on fake tensors over a fake process group: memory and traffic of a rank, in
seconds and without a device, a cluster or data.

Fake tensors (torch.compile's) have shapes and no content; the collectives of the fake group do nothing. Sizes are those
of CPU tensors, which are the same on any device.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import stage
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardlab import models, parallel
from shardlab.data import encoders
from shardlab.errors import UserError
from shardlab.measure import flops
from shardlab.measure.memory import Memory
from shardlab.measure.traffic import TimelineRecorder, Traffic, fraction_sent
from shardlab.models import matching
from shardlab.models._layers import Attention
from shardlab.models._sequence import first_part
from shardlab.models.weights import allocate
from shardlab.parallel.ddp import BROADCAST
from shardlab.parallel.pipeline import TimedStage
from shardlab.patches import torch_internals, transformers_values
from shardlab.runtime import distributed, tasks
from shardlab.runtime.batches import Steps
from shardlab.runtime.distributed import local
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.deepspeed import sized
from shardlab.settings.pipeline_schedules import boundaries
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run
from shardlab.train.step import train_step

COUNTED = 2
"""The step that a training also counts: the simulated batch has the same shapes."""
PARTS: Any = stage
"""The metadata that stages exchange has no public names."""


def simulate(runs: Sequence[tuple[Run, Path | None]], cores: int = 1) -> Iterator[dict[str, Any] | str]:
    """Yield the cost of each run, under the names of records/plan.py, or a sentence that says why there is none.

    Each run comes with the folder of its prepared data set, or None; without data, samples have the largest possible
    size. One rank of each pipeline stage is simulated: the first one, which has the largest part of batches and shards.
    Each rank is simulated in a separate process, forked from this one, because PyTorch keeps process groups in global
    state.
    """
    for run in {run.model.folder: run for run, _ in runs if run.model.folder}.values():
        # Imports the library's parts: a process that is forked while this one does waits for ever for the import.
        _or_why(models.build, run.model, run.task, torch.float32)
    gc.collect()
    gc.freeze()  # each process searches its objects for tensors: skip those of the imports
    with get_context("fork").Pool(cores, maxtasksperchild=1) as pool:
        under_way = [
            [pool.apply_async(_or_why, (_counted, _stand_in(run), data, rank)) for rank in _first_of_each_stage(run)]
            for run, data in runs
        ]
        ended = [[rank.get() for rank in each] for each in under_way]
    # A process that the pool forks while this one builds a model may wait for ever for a lock of PyTorch's.
    for (run, _), seen in zip(runs, ended, strict=True):
        yield _together(run, seen)


def _first_of_each_stage(run: Run) -> list[int]:
    """Return the first rank of each stage, which has the largest part of batches and shards."""
    distance = run.mesh.stride(*run.mesh.axes("layers")) if run.mesh.pipelined else 1
    return [stage * distance for stage in range(run.mesh.stages)]


def _together(run: Run, seen: list[dict[str, Any] | str]) -> dict[str, Any] | str:
    """Combine the results of a run's simulated ranks."""
    if run.zero_stage and not PRECISIONS[run.recipe.arithmetic].is_full:
        return f"DeepSpeed's memory and traffic in {run.recipe.precision} cannot be computed; measure a run instead"
    if reasons := [each for each in seen if isinstance(each, str)]:
        return reasons[0]
    estimate = [each for each in seen if not isinstance(each, str)]
    sent: defaultdict[tuple[str, str], float] = defaultdict(float)
    for each in estimate:
        for entry in each["traffic"]:
            sent[entry["axis"], entry["collective"]] += entry["bytes"]
    whole = {
        "ranks": _first_of_each_stage(run),
        "tensor_bytes": [each["tensor_bytes"] for each in estimate],
        "traffic": [
            {"axis": axis, "collective": name, "bytes": size / len(estimate)}  # the mean over stages
            for (axis, name), size in sorted(sent.items())
        ],
    }
    return _zero(run, estimate[0] | whole) if run.zero_stage else estimate[0] | whole


def _or_why(simulated: Callable[..., Any], *words: Any) -> Any:
    """Return the result of a function of a run, or a sentence that says why there is none."""
    try:
        return simulated(*words)
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"PyTorch cannot simulate it ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]})"


def _counted(run: Run, data: Path | None, rank: int) -> dict[str, Any]:
    """Return what one rank holds and sends in one step."""
    if run.devices_per_rank > 1 and run.site.device != "cpu":
        raise UserError(f"a plan is of one device, and a process here has {run.devices_per_rank}; measure a run")
    with ExitStack() as stack:
        if run.mesh:
            stack.enter_context(fake_group(run.world_size, rank))
        world = distributed.world(run, "cpu")
        task = _task(run, data, world.device)
        fake = FakeTensorMode(
            allow_non_fake_inputs=True,
            shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True, allow_scalar_outputs=True),
        )
        # Each rank reads the seed of its masks from a tensor, and a fake tensor has no value.
        stack.enter_context(mock.patch("shardlab.parallel.tensor.drawn", return_value=0))
        if run.model.folder:
            stack.enter_context(transformers_values.without_values(packed=task.packed))
        stack.enter_context(torch_internals.shapes_uncounted())
        stack.enter_context(torch_internals.sends_hold_their_tensors())
        engine: Any = parallel.build(run, task, world, None)
        steps = Steps(task, engine, run.recipe, run.seed, world)
        step = steps[min(COUNTED, steps.count - 1)]
        counted = flops.count_flops(run, task, task.micro_batch("train", steps.order.batch(step.number)))
        if run.mesh.pipelined:
            rows = step.micro_batches[0].rows // engine.chunks
            meta = {name: values[:rows].to("meta") for name, values in step.micro_batches[0].batch.items()}
            engine.stage = alone(boundary_states(engine.run, task, meta))
        with fake:
            for part, device in zip(engine.parts, engine.devices(), strict=True):
                allocate(part, device, world.device)
            engine.ready(engine.parts)  # without DDP, whose C++ code reads the gradients
            step = replace(step, micro_batches=[_faked(micro) for micro in step.micro_batches])
            if run.mesh.pipelined:
                train_step(engine, step, world)  # the stages exchange their shapes
            else:
                _make_optimizer_state(engine)
            gc.collect()
            memory, traffic = Memory(world.device, fake=True), Traffic(world, TimelineRecorder())
            with memory, traffic, _kernels(run):
                train_step(engine, step, world, lambda _, engine: _name(memory, engine))
                _name(memory, engine)
        figures = memory.figures()
        if run.options.cpu_offload and run.site.device != "cpu":
            _leave_out(figures, ["weights", "gradients", "optimizer"])
        sent = [{"axis": a, "collective": name, "bytes": size} for (a, name), size in traffic.bytes.items()]
        if run.mesh.replicated and not run.mesh.sharded:
            trained = sum(local(each).nbytes for each in engine.parameters().values() if each.requires_grad)
            bytes_sent = _sent_by_ddp(run.mesh.replicas, trained, engine.parts)
            sent.append({"axis": run.mesh.replica_axes[0], "collective": "all_reduce", "bytes": bytes_sent})
            _hold_buckets(figures, run, trained)
        return {
            "tensor_bytes": figures,
            "traffic": sent,
            "flops_per_step": counted,
            "parameters": engine.parameter_count,
        }


def _sent_by_ddp(replicas: int, trained: int, parts: Iterable[nn.Module]) -> float:
    """Return the bytes that DDP, whose C++ code is not simulated, sends per step: ``trained`` bytes of gradients are
    all-reduced, and the first replica's buffers are broadcast.
    """
    buffers = sum(buffer.nbytes for part in parts for buffer in part.buffers() if buffer.dtype in BROADCAST)
    return fraction_sent("all_reduce", replicas) * trained + fraction_sent("broadcast", replicas) * buffers


def _kernels(run: Run) -> AbstractContextManager[Any]:
    """Select the attention kernel that a GPU would use, where a CPU uses another one and therefore keeps less.

    Memory-efficient attention needs as many key heads as heads (PyTorch 2.13, sdp_utils.cpp).
    """
    kernels = PRECISIONS[run.recipe.arithmetic].attention
    args = run.model.args
    grouped = args.get("kv_heads", args.get("heads")) != args.get("heads")
    fused = "flash" in kernels or ("efficient" in kernels and not grouped)
    return nullcontext() if fused or run.site.device == "cpu" else sdpa_kernel(SDPBackend.MATH)


def _leave_out(figures: dict[str, Any], kinds: list[str]) -> None:
    """Subtract kinds of tensors that are in CPU memory and not in device memory."""
    for kind in kinds:
        figures["peak"] -= figures["at_peak"][kind]
        figures["at_peak"][kind] = figures["largest"][kind] = 0


def _hold_buckets(figures: dict[str, Any], run: Run, trained: int) -> None:
    """Count DDP's gradients, ``trained`` bytes, as always allocated: they are views of its buckets."""
    size = 0 if run.engine_config else trained
    more = max(0, size - figures["at_peak"]["gradients"])
    figures["at_peak"]["gradients"] += more
    figures["largest"]["gradients"] = max(size, figures["largest"]["gradients"])
    figures["peak"] += more


def _task(run: Run, data: Path | None, device: torch.device) -> Task:
    """Return the task over the prepared data, or over synthetic arrays if there is none."""
    folder = data or Path()
    task = tasks.task_for(run, folder, device)
    if data is None:
        task.pretend(encoders.blank(run.data, (COUNTED + 1) * run.recipe.global_batch_size))
    return task


def _faked(micro: MicroBatch) -> MicroBatch:
    batch = {name: torch.empty(values.shape, dtype=values.dtype) for name, values in micro.batch.items()}
    return replace(micro, batch=batch)


def _name(memory: Memory, engine: Any) -> None:
    for kind, tensors in engine.tensors_by_kind().items():
        memory.name(kind, tensors)


def _make_optimizer_state(engine: Any) -> None:
    """Create the optimizer state that the first step creates, without a forward and backward pass."""
    for parameter in engine.parameters().values():
        if not parameter.requires_grad:
            continue
        parameter.grad = torch.zeros_like(parameter)
    engine.optimizer.step()
    engine.optimizer.zero_grad()


def _stand_in(run: Run) -> Run:
    """Return the run itself; for DeepSpeed, the same batches on the same ranks with whole replicas."""
    if run.zero_stage is None:
        return run
    mesh = type(run.mesh)({"dp_replicate": run.world_size})
    return run.model_copy(update={"engine": "torch", "mesh": mesh})


def _zero(run: Run, plain: dict[str, Any]) -> dict[str, Any]:
    """Add DeepSpeed's states by formula to the simulation of whole replicas: DeepSpeed does not run on fake tensors.

    Stages 1 and 2 keep a flat copy of their part of the weights, which the optimizer updates; each stage has a bucket
    of ``reduce_bucket_size`` values through which gradients pass (deepspeed.readthedocs.io, "ZeRO"). A larger parameter
    is reduced separately: from stage 2 on through a copy of its gradient and the rank's part of it; in stage 3 the
    whole weight exists as well.
    """
    level, ranks = run.zero_stage or 0, run.world_size
    (bytes_,) = plain["tensor_bytes"]
    at_peak, largest = dict(bytes_["at_peak"]), dict(bytes_["largest"])
    weights = largest["weights"]
    bucket = sized(run.engine_config or {}, plain["parameters"])["zero_optimization"].get(
        "reduce_bucket_size", 5 * 10**8
    )
    model = models.build(run.model, run.task, getattr(torch, run.recipe.dtype))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trained, of_value = sum(parameter.nbytes for parameter in parameters), PRECISIONS[run.recipe.dtype].bytes
    largest_parameter = max(parameter.numel() for parameter in parameters)
    for held in (at_peak, largest):
        held["weights"] = weights // ranks if level == 3 else weights
        held["master_weights"] = 0 if level == 3 else trained // ranks
        held["optimizer"] //= ranks
        held["gradients"] //= 1 if level == 1 else ranks
        held["other"] += bucket * of_value
        if level > 1 and largest_parameter > bucket:
            held["other"] += int((level - 1 + 1 / ranks) * largest_parameter) * of_value
    sent = [{"axis": "world", "collective": "all", "bytes": _zero_bytes(run, weights, trained, plain["parameters"])}]
    figures = {"peak": sum(at_peak.values()), "at_peak": at_peak, "largest": largest}
    if run.site.device != "cpu":
        zero = (run.engine_config or {}).get("zero_optimization", {})
        for key, kinds in (("offload_param", ["weights"]), ("offload_optimizer", ["master_weights", "optimizer"])):
            _leave_out(figures, kinds if zero.get(key, {}).get("device") == "cpu" else [])
    return plain | {"tensor_bytes": [figures], "traffic": sent if ranks > 1 else []}


def _zero_bytes(run: Run, weights: int, trained: int, parameters: int) -> float:
    """Return the bytes that DeepSpeed 0.19 sends, which differ from the paper's volume; ``trained`` of the ``weights``
    are not frozen.

    Stages 1 and 2 all-reduce gradients and gather weights; stage 3 gathers weights a second time only if there are more
    than ``stage3_max_live_parameters``.
    """
    one = fraction_sent("all_gather", run.world_size)
    if run.zero_stage != 3:
        return 3 * one * trained
    live = (run.engine_config or {}).get("zero_optimization", {}).get("stage3_max_live_parameters", 10**9)
    gathers = 2 if parameters > live else 1
    return one * (gathers * weights + trained) * run.recipe.gradient_accumulation_steps


@contextmanager
def fake_group(size: int, rank: int) -> Iterator[None]:
    """Process group of this size whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def alone(states: list[tuple[Tensor, ...]]) -> type[TimedStage]:
    """Return a stage class that knows the metadata of its neighbors: the shapes of the state after each stage."""

    class Alone(TimedStage):
        def _recv_meta(self, src_stage: int) -> Any:
            if src_stage < self.stage_index:
                values = tuple(
                    torch.empty(value.shape, dtype=value.dtype, requires_grad=value.is_floating_point())
                    for value in states[src_stage]
                )
                return PARTS._StageForwardMeta(forward_metas=PARTS.extract_tensor_metas(values))
            return PARTS._StageBackwardMeta(backward_metas=PARTS._derive_grad_metas(self._stage_meta.outputs))

        def _send_meta(self, meta: Any, dst_stage: int) -> None:
            pass

        def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> Any:
            return None

        def _warmup_backward_result(self, received_result: Any = None) -> Any:
            return SimpleNamespace(item=lambda: 0)  # no stage knows its shapes beforehand

    return Alone


def boundary_states(run: Run, task: Task, batch: dict[str, Tensor]) -> list[tuple[Tensor, ...]]:
    """Return what each pipeline stage passes to the next for a batch on the meta device, as one rank holds it."""
    model: Any = meta_model(run)
    called: list[str] = []  # of the modules that the plan splits, how
    for pattern, style in run.model.tensor.items():
        for module in matching(model, pattern):
            module.register_forward_hook(lambda *_, style=style: called.append(style))
    for module in model.modules():
        if isinstance(module, Attention):  # whose result has the shape of its query
            module.attend = lambda query, *_, **__: query
    where = boundaries(run.model.segments, run.mesh.stages * run.options.pipeline.stages_per_rank)
    last = {stop for _, stop in where}
    state, keywords = task.inputs(batch)
    states = []
    for number, values in enumerate(model.states(*state, **keywords), 1):
        if number in last:
            # After a column layer the state stays split over the tensor-parallel ranks.
            split = run.mesh.tensor_parallel and called and called[-1] == "column"
            parts = run.mesh.tensor_parts if split else 1
            states.append(tuple(value[..., : value.shape[-1] // parts] for value in values))
    return states


def meta_model(run: Run) -> nn.Module:
    """Return the model on the meta device, for a rank's part of the sequences."""
    model = models.build(run.model, run.task, getattr(torch, run.recipe.dtype)).to("meta")
    first_part(run).assign(model)
    return model
