"""The first steps of a training, with what each of them read and computed in files: the input of a diagnosis.

A capture is a folder (see traindiff/capture_files.py). Whole tensors pass through a device one at a time, so that it
needs no more memory than a training step in this dtype does. The host's memory has what modules return, until the end
of a step, and on rank 0 under DeepSpeed the whole state of the optimizer.
"""

import gc
import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shardlab import models
from shardlab.files import write_text
from shardlab.models import weights
from shardlab.models._losses import IGNORE
from shardlab.models._sequence import SequenceSplit
from shardlab.models.contents import dropout_keys
from shardlab.parallel.native import NativeEngine
from shardlab.records import manifest
from shardlab.runtime import distributed
from shardlab.runtime.distributed import local
from shardlab.runtime.engine import Engine
from shardlab.runtime.optimizers import EMA
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.types import Run
from shardlab.train import evaluation, loop
from shardlab.train.step import train_step
from traindiff import capture_files, dump

STEPS = 4
"""Steps of a capture: the first of two epochs, where these are short."""
KEPT = 200_000
"""Values of a sample's gradient that are kept, of all parameters together: an exact sum of gradients shows in any."""
HASHED = 50_000
"""Rows of the prepared data of which a script's samples are looked for."""
LARGE, EVERY = 10**8, 16
"""Of a model with more parameters only every 16th feature is kept."""


def settings(run: Run, dtype: str = "float64") -> Run:
    """Return a run as it is captured: in float64 (DeepSpeed: float32), without dropout and low precision."""
    if run.engine != "torch":
        dtype = "float32"
    recipe = run.recipe.model_copy(update={"dtype": dtype, "precision": "full", "keep_best": False})
    model = models.build(run.model, run.task, getattr(torch, dtype))
    args = run.model.args | dict.fromkeys(dropout_keys(model, run.model.args), 0.0)
    return run.model_copy(update={"recipe": recipe, "model": run.model.model_copy(update={"args": args})})


def capture(run: Run, data: Path, initial: Path, folder: Path, divided_like: Run | None = None) -> None:
    """Take the first steps of ``run`` on this rank and write the capture; a collective.

    ``data`` is the prepared data set, ``initial`` the initial weights. ``divided_like``: on one device, also write the
    gradient of each sample of each step, and of each part of its sequence under that run.

    Raises:
        UserError: see ``loop.train``.
    """
    about = _take_steps(run, data, initial, folder, hashed=divided_like is not None and bool(divided_like.script))
    gc.collect()  # A rank has memory for one model, whose parts and hooks point to each other.
    about["resumed_at"] = _restore(run, data, initial, folder, len(about["steps"]))
    gc.collect()
    if divided_like:
        _gradients_of_samples(run, data, initial, folder, divided_like, len(about["steps"]))
        gc.collect()
    if distributed.is_main():
        if not run.evaluated_sharded:
            about["evaluated"] |= _tested(
                lambda: evaluation.evaluate_whole(run, data, folder / "run/model.safetensors")
            )
        _write_numbers(folder / capture_files.NAME, about)


def _tested(evaluate: Callable[[], Any]) -> dict[str, float | None]:
    """Return loss and metric of the test split; nan if they are not finite, which no report accepts."""
    try:
        test = evaluate()
    except evaluation.NotFinite:
        return {"test": math.nan, "metric": math.nan}
    return {"test": test.loss, "metric": test.metric_value}


def _write_numbers(path: Path, value: Any) -> None:
    """Write JSON, in which what is not finite has Python's spelling: here it is a finding."""
    write_text(path, json.dumps(value))


def _take_steps(run: Run, data: Path, initial: Path, folder: Path, *, hashed: bool) -> dict[str, Any]:
    """Write what the steps and a validation compute, a checkpoint and the weights; return what capture.json has.

    ``hashed``: with the hashes by which a script's dump names samples, and the rows of the prepared data that they are.
    """
    state = loop.set_up(run, data, initial, folder / "run", {}, loop.TrainOptions(restart=True))
    recorder = _Recorder(state, folder)
    recorder.save_weights("initial")
    for number in range(min(STEPS, state.steps.count)):
        recorder.step(number)
    state.checkpointer.checkpoint(len(recorder.steps))
    evaluated: dict[str, Any] = {"validation": state.checkpointer.validate()}
    state.checkpointer.save("model.safetensors")
    if run.evaluated_sharded:
        evaluated |= _tested(lambda: evaluation.evaluate_engine(run, state.engine, state.task, state.world))
    state.log.close()
    hashes = {"hashes": _hashes(state.task)} if hashed else {}
    return recorder.about() | {"evaluated": evaluated} | hashes


def _hashes(task: Task) -> dict[str, int]:
    """Return the row of the prepared data of each hash of a sample; of the first rows, where these are many."""
    found: dict[str, int] = {}
    for row in range(min(task.samples("train"), HASHED)):
        positional, keywords = task.inputs(task.micro_batch("train", np.array([row])).batch)
        hashes, _ = dump.hashes([list(positional), keywords])
        found |= dict.fromkeys(hashes[:1], row)
    return found


def _restore(run: Run, data: Path, initial: Path, folder: Path, step: int) -> int:
    """Write what the checkpoint of a step restores; return the step at which it resumes."""
    options = loop.TrainOptions(resume=manifest.place(folder / "run", step))
    state = loop.set_up(run, data, initial, folder / "run", {}, options)
    recorder = _Recorder(state, folder)
    recorder.save_weights("restored/weights")
    recorder.save_state("restored/optimizer")
    state.log.close()
    return state.start.step


class _Recorder:
    """Writes the files of a capture."""

    def __init__(self, state: loop.TrainState, folder: Path) -> None:
        self.state, self.folder, self.engine = state, folder, state.engine
        self.native = state.engine if isinstance(state.engine, NativeEngine) else None
        self.steps: list[dict[str, Any]] = []
        self.indices: list[list[int]] = []
        self.outputs = ModuleOutputs(state.engine)
        named = self.native.parameter_names if self.native else None
        self.names = named or models.trained_names(state.engine.plain)  # type: ignore[attr-defined]

    def step(self, number: int) -> None:
        """Take a step and write what it reads and computes."""
        state, world = self.state, self.state.world
        with self._watched():
            step = state.steps[number]
            record: dict[str, Any] = {"lengths": [self._lengths(micro.batch) for micro in step.micro_batches]}

            def observe(_: int, __: Any) -> None:
                self.save(f"step{number}/gradients", self.engine.gradients(), self.names)

            with self._before_update(number, record):
                metrics = train_step(self.engine, step, world, observe).metrics(unchecked=True)
        kept, order = self.outputs.take([micro.rows for micro in step.micro_batches])
        self.save_weights(f"step{number}/weights")
        self.save_state(f"step{number}/optimizer")
        path = capture_files.rank_file(self.folder, number, world.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in kept.items()}, path)
        record |= {"indices": self.indices, "counts": [micro.count for micro in step.micro_batches], "order": order}
        record["weights"] = self._sums(self._own())
        _write_numbers(path.with_suffix(".json"), record)
        self.steps.append(
            {
                "samples": step.samples,
                "targets": step.targets,
                "learning_rate": step.learning_rate,
                "loss": metrics.loss,
                "norm": metrics.norm,
            }
        )

    def save(self, name: str, tensors: Iterable[tuple[str, Tensor]], names: Iterable[str]) -> None:
        """Write whole tensors of these names as they arrive; a collective."""
        layout = {key: self.engine.meta_state_dict[key.split("//")[0]] for key in names}
        if self.state.world.is_rank0:
            weights.save(tensors, layout, self.folder / f"{name}.safetensors")
        else:
            deque(tensors, maxlen=0)

    def save_weights(self, name: str) -> None:
        self.save(name, self.engine.weights(), self.engine.meta_state_dict)

    def save_state(self, name: str) -> None:
        """Write the optimizer's whole tensors, ``<parameter>//<key>``; a collective."""
        # DeepSpeed's whole tensors are in memory together: only on the rank that writes them.
        states = self.engine.optimizer_state(to_write=True).items()
        own = {key: value for key, value in states if value.dim() and not key.endswith(f"/{EMA}")}
        keys = sorted({key.rpartition("/")[2] for keys in self.state.world.gather([*own]) for key in keys})
        names = [f"{name}//{key}" for name in self.names for key in keys]
        self.save(name, self._state(own, names), names)

    def about(self) -> dict[str, Any]:
        """Return what is known of all steps, and each rank's place; a collective."""
        world, run = self.state.world, self.engine.run
        sequence = world.sequence
        split = {"ranks": sequence.ranks, "rank": sequence.rank, "head_tail": sequence.head_tail}
        ranks = world.gather({"place": world.place, "data_rank": world.data_rank, "sequence": split})
        modules = {name: classes for each in world.gather(self.outputs.modules) for name, classes in each.items()}
        return {
            "conditions": f"in {run.recipe.dtype}, without dropout, "
            "from the run's own settings, initial weights and batches",
            "dtype": run.recipe.dtype,
            "mesh": run.mesh.root,
            "accumulation": run.recipe.gradient_accumulation_steps,
            "chunks": self.engine.chunks,
            "steps_in_all": self.state.steps.count,
            "steps": self.steps,
            "ranks": ranks,
            "modules": modules,
            "parameters": self.names,
            "has_first_position": bool(self.state.task.at_first_position),
        }

    def _lengths(self, batch: dict[str, Tensor]) -> list[list[int]]:
        """Return the lengths of sequences of which this rank has a part, and of those that it has whole."""
        task = self.state.task
        return [sorted({batch[name].shape[1] for name in names}) for names in (task.sequences, task.whole_sequences)]

    def _state(self, own: Mapping[str, Tensor], names: list[str]) -> Iterator[tuple[str, Tensor]]:
        parameters = self._own()
        for name in names:
            parameter, _, key = name.partition("//")
            value = own.get(f"{parameter}/{key}")
            if self.native is None:
                if value is None:  # only the rank that writes has it, and no rank that of a parameter without values
                    device = "cpu" if self.state.world.is_rank0 else "meta"
                    value = torch.empty_like(self.engine.meta_state_dict[parameter], device=device)
                yield name, value
                continue
            if value is None and parameter in parameters:  # it never had a gradient
                value = torch.zeros_like(parameters[parameter])
            yield name, self.native.whole(parameter, value)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note which samples a step reads, and which micro-batch is computed."""
        task, engine = self.state.task, self.engine
        micro_batch, forward_backward = task.micro_batch, engine.forward_backward
        self.indices = []

        def noted(split: str, indices: Any, *args: Any) -> Any:
            self.indices.append(np.asarray(indices).tolist())
            return micro_batch(split, indices, *args)

        def counted(*args: Any, **options: Any) -> Tensor:
            loss = forward_backward(*args, **options)
            self.outputs.micro_batch += 1
            return loss

        self.outputs.clear()
        task.micro_batch, engine.forward_backward = noted, counted  # type: ignore
        try:
            yield
        finally:
            del task.micro_batch, engine.forward_backward

    @contextmanager
    def _before_update(self, number: int, record: dict[str, Any]) -> Iterator[None]:
        """Write the gradients as the optimizer gets them."""
        if self.native is None:
            yield
            return

        def look(*_: Any) -> None:
            own = {name: p.grad for name, p in self._own().items() if p.grad is not None}
            record["gradients"] = self._sums(own)
            record["partial"] = [
                name
                for name, gradient in own.items()
                if getattr(gradient, "placements", None) != getattr(self._own()[name], "placements", None)
            ]
            self.save(f"step{number}/clipped", self.engine.gradients(), self.names)

        handle = self.native.optimizer.register_step_pre_hook(look)
        yield
        handle.remove()

    def _own(self) -> dict[str, Any]:
        return dict(self.native.parameters()) if self.native else {}

    def _sums(self, tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return for each tensor the norm and the sum of this rank's part, and which part it is, along split axes."""
        found: dict[str, list[Any]] = {}
        for name, value in tensors.items():
            placements, mesh = getattr(value, "placements", ()), getattr(value, "device_mesh", None)
            place = [] if mesh is None else zip(mesh.mesh_dim_names, mesh.get_coordinate(), placements, strict=True)
            part = [f"{axis}={rank}" for axis, rank, each in place if not each.is_replicate()]
            precise = local(value.detach()).double()
            found[name] = [float(precise.norm()), float(precise.sum()), part]
        return found


def _gradients_of_samples(run: Run, data: Path, initial: Path, folder: Path, like: Run, steps: int) -> None:
    """Write the gradient of each part of each sample of the steps' losses, if the model takes one sample alone.

    In a model of its own: forward passes change the statistics of batch norm, which the steps' files have.
    """
    state = loop.set_up(run, data, initial, folder / "run_of_samples", {}, loop.TrainOptions(restart=True))
    engine = cast(NativeEngine, state.engine)
    kept = {
        name: dump.sketch(value.numel(), state.engine.parameter_count, KEPT).to(value.device)
        for name, value in engine.parameters().items()
    }
    try:
        for number in range(steps):
            if number:
                _load(engine, folder / f"step{number - 1}/weights.safetensors")
            rows, metadata = [], []
            for sample, part, batch in _parts(state, like, number):
                engine.forward_backward(MicroBatch(batch, 1, 1), 1 / state.steps[number].targets, last=True)
                rows.append({name: value.flatten()[kept[name]].cpu() for name, value in engine.gradients()})
                metadata.append((sample, int(state.task.targets_in(batch)), part))
                engine.zero_grad()
            if rows:
                tensors = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
                tensors |= {name + capture_files.INDEX: kept[name].cpu() for name in tensors}
                lists = dict(zip(("ids", "targets", "parts"), map(list, zip(*metadata, strict=True)), strict=True))
                if not any(lists["parts"]):
                    del lists["parts"]
                text = {key: json.dumps(value) for key, value in lists.items()}
                save_file(tensors, folder / f"step{number}/samples.safetensors", text)
    except (ValueError, RuntimeError):
        return
    finally:
        state.log.close()


@torch.no_grad()
def _load(engine: NativeEngine, path: Path) -> None:
    """Put weights into a model on one device."""
    whole = load_file(path)
    for name, value in engine.weights_state().items():
        value.copy_(whole[name])


def _parts(state: loop.TrainState, like: Run, number: int) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
    """Yield (sample, part, batch) of a step; nothing if these are too many."""
    task = state.task
    batch = state.steps.order.batch(number)
    ranks = like.mesh.parts("sequence") if "targets" in task.sequences else 1  # one target per sample has no parts
    if len(batch) * ranks > capture_files.SAMPLES:
        return
    whole = SequenceSplit(ranks, head_tail=like.options.splits_head_and_tail)
    every = task.micro_batch("train", batch).batch
    for number, index in enumerate(batch.tolist()):
        # A row of the whole batch, so that parts are those of its padded length.
        one = {name: values[number : number + 1] for name, values in every.items()}
        for rank in range(ranks):
            rows = dict(one)
            if ranks > 1:
                length = rows["targets"].shape[1]
                filled = -(-length // whole.count) * whole.count
                own = replace(whole, rank=rank).positions(filled // ranks, rows["targets"].device)
                others = torch.ones(filled, dtype=torch.bool, device=own.device).index_fill(0, own, False)
                rows["targets"] = rows["targets"].masked_fill(others[:length], IGNORE)
            yield index, rank, rows


class ModuleOutputs:
    """Hooks on all modules of a rank that keep each one's output in CPU memory, until ``take``."""

    def __init__(self, engine: Engine) -> None:
        """Hook each module, or with recipe.compile only what calls compiled code."""
        run = engine.run
        self.micro_batch = 0
        self._pieces = engine.chunks or 1
        """Forward passes of a micro-batch: a pipeline divides it."""
        self._thinned = engine.parameter_count > LARGE
        self.modules: dict[str, list[str]] = {}
        """Module: names of its class and of those of the modules around it, innermost first."""
        self._kept: dict[tuple[int, str, int], dict[int, Tensor]] = defaultdict(dict)
        """Of each forward pass of a part of the model, what a module returned in its last call."""
        self._pass = 0
        self._chunks = run.recipe.loss_chunks
        self._divided: set[tuple[int, str, int]] = set()
        """Outputs of modules that are called once per chunk of the positions, which one device divides differently."""
        self._order: dict[str, None] = {}
        parts = getattr(engine, "parts", None) or [engine.plain]  # type: ignore[attr-defined]
        if run.options.single_process == "dp":
            parts = engine.models  # type: ignore[attr-defined]  # its copies of the model share their hooks
        for part in parts:
            self._hook(part, _compiled(run, part), inner=run.options.single_process != "dp")

    def clear(self) -> None:
        """Forget what was kept, such as of passes that belong to no step."""
        self.micro_batch = 0
        self._kept.clear()
        self._order.clear()
        self._divided.clear()

    def take(self, rows: list[int]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the outputs since the last call, ``<micro-batch>/output/<module>/<index>``: (rows, ...), and the
        modules in the order in which they returned. ``rows``: those of each micro-batch.
        """
        taken = {}
        for (micro, name, index), calls in self._kept.items():
            # Before its first micro-batch a pipeline runs each stage once, only to infer shapes.
            pieces = [*calls.values()][-self._pieces :]
            # Rows that are no samples, such as tokens, cannot be found again on one device.
            is_divided = (micro, name, index) in self._divided
            if not is_divided and len({piece.shape for piece in pieces}) == 1 and sum(map(len, pieces)) == rows[micro]:
                taken[f"{micro}/output/{name}/{index}"] = torch.cat(pieces)
        order = [*self._order]
        self.clear()
        return taken, order

    def _hook(self, part: nn.Module, compiled: list[nn.Module], *, inner: bool) -> None:
        part.register_forward_pre_hook(lambda *_: self._count())
        inside = {each for block in compiled for each in block.modules() if each is not block}
        for name, module in part.named_modules():
            above = [part.get_submodule(".".join(name.split(".")[:end])) for end in range(name.count(".") + 1)]
            around = [module, *reversed(above)] if name else [module]
            self.modules[name] = [type(each).__name__.removeprefix("FSDP") for each in around]
            is_partial_chain = not getattr(module, "has_last_segment", True)
            if module not in inside and (inner or not name) and not is_partial_chain:
                module.register_forward_hook(lambda _, __, output, name=name: self._keep(name, output))

    def _count(self) -> None:
        self._pass += 1

    def _keep(self, name: str, output: Any) -> None:
        # Not a recomputation in the backward pass, and not a pass without gradients that only infers shapes.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        self._order[name] = None
        for index, value in enumerate(output if isinstance(output, tuple) else (output,)):
            # Integers count tokens of experts, of this rank's part of them.
            if isinstance(value, Tensor) and value.dim() and value.is_floating_point() and not _is_partial(value):
                kept = local(value.detach())
                if self._thinned and kept.dim() > 2:
                    kept = kept[..., ::EVERY]
                key = self.micro_batch, name, index
                if self._chunks > 1 and self._pass in self._kept[key]:
                    self._divided.add(key)
                self._kept[key][self._pass] = kept.to("cpu", copy=True)


def _is_partial(value: Tensor) -> bool:
    return any(placement.is_partial() for placement in getattr(value, "placements", ()))


def _compiled(run: Run, part: nn.Module) -> list[nn.Module]:
    """Return the modules whose forward is compiled, so that hooks inside would change what is compiled."""
    patterns = run.model.blocks if run.recipe.compile == "blocks" else []
    return [module for pattern in patterns for module in models.matching(part, pattern)]
