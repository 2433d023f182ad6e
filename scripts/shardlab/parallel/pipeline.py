"""Pipeline parallelism (``torch.distributed.pipelining``): stages of consecutive layers, batches in micro-batches."""

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from shardlab.models import contents
from shardlab.models._chain import INPUTS, Chain, stages_with
from shardlab.parallel.native import NativeEngine
from shardlab.runtime.batch_norm import statistics_kept
from shardlab.runtime.device import generators_kept, wait
from shardlab.runtime.distributed import local, plain
from shardlab.runtime.tasks import MicroBatch, Outputs
from shardlab.settings import torch_releases
from shardlab.settings.pipeline_schedules import boundaries

log = logging.getLogger(__name__)

FORWARD = ("FORWARD", "SEND_F", "RECV_F", "UNSHARD", "RESHARD")
"""PyTorch's names of the actions of a schedule that evaluation takes."""
PASSES = 100
"""Last forward and backward passes of which the idle time is reported."""
Spans = list[tuple[str, int, Any, Any]]
"""(name, micro-batch, start, end) of what ran."""


class Stopwatch:
    """Compute time of a device, measured by events on a GPU, for which the host does not wait."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spans: Spans = []
        self._begun = self._mark()
        self._last: tuple[Any, Spans] = (self._begun, [])
        self._measured: deque[tuple[Any, Spans, Any]] = deque(maxlen=PASSES)
        """Start, spans and end of measurements."""

    def begin(self) -> None:
        """Start measuring."""
        self.spans, self._begun = [], self._mark()

    def end(self) -> None:
        """Stop measuring."""
        self._last = self._begun, self.spans
        self._measured.append((*self._last, self._mark()))
        self.spans = []  # what follows is not measured

    @contextmanager
    def running(self, name: str, piece: int) -> Iterator[None]:
        """Measure the enclosed block."""
        start = self._mark()
        yield
        self.spans.append((name, piece, start, self._mark()))

    def last(self) -> list[dict[str, Any]]:
        """Return the last measurement (see records/timeline.py); waits for the device."""
        wait(self.device)
        started, spans = self._last
        since = [(name, piece, self._between(started, a), self._between(started, b)) for name, piece, a, b in spans]
        return [dict(zip(("name", "piece", "start", "end"), span, strict=True)) for span in since]

    def take(self) -> tuple[float, float]:
        """Return (compute seconds, elapsed seconds) of the device in the last passes since the last call; waits for
        the device.
        """
        wait(self.device)
        busy = sum(self._between(start, stop) for _, spans, _ in self._measured for _, _, start, stop in spans)
        elapsed = sum(self._between(started, ended) for started, _, ended in self._measured)
        self._measured.clear()
        return busy, elapsed

    def _between(self, start: Any, stop: Any) -> float:
        return float(stop - start if self.device.type == "cpu" else start.elapsed_time(stop) / 1000)

    def _mark(self) -> Any:
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self.device))
        return event


class TimedStage(pipelining.PipelineStage):
    """A stage that measures how long it computes; the time in which it waits for another is what is left."""

    watch: Stopwatch

    def _compute_outputs(self, *args: Any, module: nn.Module, **options: Any) -> Any:
        """Infer shapes: PyTorch runs the stage on uninitialized inputs."""
        with statistics_kept(module), generators_kept(self.device):
            return super()._compute_outputs(*args, module=module, **options)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Run one micro-batch forward."""
        with self.watch.running("forward", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Run one micro-batch backward, whole or for the inputs only."""
        with self.watch.running("backward", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, *args, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Run the weights' part of a split backward pass."""
        with self.watch.running("backward of weights", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)


def _boundary(stage: nn.Module, inputs: Any, outputs: Any, *, splits_backward: bool) -> Any:
    """Return a stage's outputs as PyTorch's schedules expect them: with gradients, also of a stage that is frozen, and
    no views if the backward pass is split.
    """

    def passed(value: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return value
        if not value.is_floating_point():
            torch_releases.require_whole_pipelines(
                "a pipeline whose stages hand on integers, as those of this model do,", torch.__version__
            )
            return value
        if splits_backward and value._is_view():
            value = value.clone()
        return value if value.requires_grad else value.detach().requires_grad_()

    # Blocks of openai-gpt return lists.
    return tuple(map(passed, outputs)) if isinstance(outputs, tuple | list) else passed(outputs)


class PipelineEngine(NativeEngine):
    """Stages over the ranks of the mesh axis ``pp``, each with any other axes of the mesh inside."""

    stage = TimedStage
    """Class that runs a stage's part of the model."""

    def __init__(self, run: Any, task: Any, world: Any, weights: Any) -> None:
        mesh = world.submesh(run.mesh.axes("layers"))
        self.group, self.rank, self.ranks = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self.chunks = run.options.n_microbatches
        self.plan = run.options.pipeline
        if self.plan.mirrored:
            what = f"pipeline_schedule {run.options.pipeline_schedule}, in which a rank hands on to itself,"
            torch_releases.require_whole_pipelines(what, torch.__version__)
        self.stages = self.plan.stages(self.ranks, self.rank)
        self.owner: dict[str, int] = {}
        self.tied: dict[str, list[int]] = {}
        """Parameters that stages of several ranks have: these ranks."""
        self._ties_summed = False
        super().__init__(run, task, world, weights)
        self.watch = Stopwatch(world.device)
        self.schedules: dict[Any, Any] = {}
        self.loss_of: Callable[[Outputs, Tensor], Tensor]

    def cut(self, model: nn.Module) -> list[nn.Module]:
        chain = cast(Chain, model)
        where = boundaries(self.run.model.segments, self.ranks * self.plan.stages_per_rank)
        segments = chain.segments()
        for rank in range(self.ranks):
            held = [segments[number] for stage in self.plan.stages(self.ranks, rank) for number in range(*where[stage])]
            owned = tuple(f"{name}." for piece in held for name in piece.names)
            self.owner |= {name: rank for name in self.meta_state_dict if f"{name}.".startswith(owned)}
        for name, *others in contents.tied(model):
            stages = stages_with([name, *others], segments, where)
            ranks = {self.plan.rank_of(self.ranks, stage) for stage in stages}
            if len(ranks) > 1:
                self.tied[name] = sorted(ranks)
        parts = [copy.deepcopy(chain) for _ in self.stages]
        for part, stage in zip(parts, self.stages, strict=True):
            part.cut(*where[stage])
            if not part.has_last_segment:
                part.register_forward_hook(partial(_boundary, splits_backward=self.plan.splits_backward))
        log.info(
            "Applied pipeline parallelism (%s), stages %s of %d on this rank, mesh pp=%d",
            self.plan.torch_class,
            self.stages,
            len(where),
            self.ranks,
        )
        return list(parts)

    def owns(self, name: str) -> bool:
        return self.owner[name] == self.rank

    def loss(self, micro: MicroBatch) -> Tensor:
        return self._run(micro, 1.0, backward=False)

    def forward_backward(self, micro: MicroBatch, scale: float, *, last: bool) -> Tensor:
        self.watch.begin()
        self._ties_summed = False
        loss = self._run(micro, scale, backward=True)
        if self.plan.splits_backward:
            self._lay_out_gradients()
        self.watch.end()
        return loss

    def compute_spans(self) -> list[list[dict[str, Any]]]:
        return [self.watch.last()]

    def idle_fraction(self) -> list[float] | None:
        """See Engine: this rank's bubble."""
        # A rank that is done early waits for the others after add_gradients: the longest time counts for all of them.
        busy, own = self.watch.take()
        elapsed = torch.tensor(own, dtype=torch.float64, device=self.world.device)
        dist.all_reduce(elapsed, op=dist.ReduceOp.MAX, group=self.group)
        return [1 - busy / float(elapsed)] if elapsed else None

    def sum_over_parts(self, value: Tensor) -> Tensor:
        dist.all_reduce(value, group=self.group)
        return value

    def whole(self, name: str, value: Tensor | None) -> Tensor:
        if value is None:
            whole = torch.empty_like(self.meta_state_dict[name], device=self.world.device)
        else:
            whole = super().whole(name, value).to(self.world.device).contiguous()
        if whole.numel():  # as bytes: not every backend sends every type
            dist.broadcast(whole.view(-1).view(torch.uint8), group=self.group, group_src=self.owner[name])
        return whole

    def _lay_out_gradients(self) -> None:
        """Give gradients their parameters' strides: those of PyTorch's split backward pass may have others, which fused
        optimizers on a CPU do not look at (docs/evidence.md).
        """
        for part in self.parts:
            for parameter in part.parameters():
                gradient = parameter.grad
                if gradient is not None and local(gradient).stride() != local(parameter).stride():
                    parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def _reduce_partial_gradients(self) -> None:
        super()._reduce_partial_gradients()
        if not self._ties_summed:
            self._ties_summed = True
            self._sum_ties()

    def _sum_ties(self) -> None:
        """Add the gradients of a tied parameter on all stages that have it, in the same order on each."""
        parameters = self.parameters()
        exchanged, operations = [], []
        for name, ranks in self.tied.items():
            if self.rank not in ranks or not parameters[name].requires_grad:
                continue
            parameter = parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            own = local(parameter.grad).to(self.world.device).contiguous()
            gradients = {rank: own if rank == self.rank else torch.empty_like(own) for rank in ranks}
            for rank in ranks:
                if rank != self.rank and own.numel():
                    operations.append(dist.P2POp(dist.isend, own, group=self.group, group_peer=rank))
                    operations.append(dist.P2POp(dist.irecv, gradients[rank], group=self.group, group_peer=rank))
            exchanged.append((local(parameter.grad), gradients))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for gradient, gradients in exchanged:
            gradient.copy_(torch.stack([gradients[rank] for rank in sorted(gradients)]).sum(0))

    def _run(self, micro: MicroBatch, scale: float, *, backward: bool) -> Tensor:
        """Send a micro-batch through the pipeline, in ``chunks`` pieces."""
        positional, keywords = self.task.inputs(micro.batch)
        positional = tuple(value.contiguous() for value in positional)  # PyTorch before 2.13 compares strides
        if cast(Chain, self.parts[0]).takes_inputs:
            keywords = {**keywords, INPUTS: positional[0]}
        schedule = self._schedule(backward, *positional, *keywords.values())
        rows = torch.arange(micro.rows, device=self.world.device)

        def loss_of(outputs: Outputs, rows: Tensor) -> Tensor:
            # The first value in `rows` identifies these rows without reading them from the device; the samples that
            # do not
            # count are the last ones.
            first = int(rows.storage_offset())
            last = first + len(rows)
            piece = {name: values[first:last] for name, values in micro.batch.items()}
            part = MicroBatch(piece, max(0, min(last, micro.count) - first), len(rows))
            if backward and self.watch.spans:  # before a stage has computed anything, PyTorch runs it to infer shapes
                self.task.count(outputs, part)
            return self.task.counted_loss(outputs, part) * scale

        self.loss_of = loss_of
        losses: list[Tensor] = []
        first = positional if 0 in self.stages else ()
        with self._loss_context():
            if backward:
                schedule.step(*first, target=rows, losses=losses, return_outputs=False, **keywords)
            else:
                schedule.eval(*first, target=rows, losses=losses, **keywords)
        total = torch.zeros((), dtype=torch.promote_types(self.task.dtype, torch.float32), device=self.world.device)
        return total + sum(plain(loss.detach()) for loss in losses) / scale

    def _schedule(self, backward: bool, *inputs: Any) -> Any:
        """Return the schedule for these input shapes, as stages hold buffers of fixed shapes; losses alone use another
        one.
        """
        key = (backward, *(value.shape for value in inputs if isinstance(value, Tensor)))
        if key not in self.schedules:
            count = self.ranks * self.plan.stages_per_rank
            stages = []
            for model, number in zip(self.models, self.stages, strict=True):
                stage = self.stage(model, number, count, self.world.device, group=self.group)
                stage.watch = self.watch
                stages.append(stage)
            self.schedules[key] = schedule = getattr(pipelining, self.plan.torch_class)(
                stages if self.plan.stages_per_rank > 1 else stages[0],
                self.chunks,
                loss_fn=lambda outputs, rows: self.loss_of(outputs, rows),
                scale_grads=False,
            )
            if not backward and self.plan.mirrored:
                # Within a rank PyTorch 2.13 would hand on gradients, also where there are none.
                actions = schedule.pipeline_order_with_comms
                actions[self.rank] = [each for each in actions[self.rank] if each.computation_type.name in FORWARD]
        return self.schedules[key]
