"""PyTorch-native strategies: what is applied to the model, in which order, and one common step."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from shardlab import models
from shardlab.models import contents
from shardlab.models.weights import materialize
from shardlab.parallel import ddp, parallelize
from shardlab.runtime import optimizers
from shardlab.runtime.batch_norm import Statistics, tracked
from shardlab.runtime.device import wait
from shardlab.runtime.distributed import World, local, plain
from shardlab.runtime.engine import Engine
from shardlab.runtime.optimizers import EMA, WeightAverage
from shardlab.runtime.tasks import MicroBatch, Outputs, Task
from shardlab.settings.types import Run

LONGEST_ROW = 2**16
"""Number of values whose float32 norm is accurate to seven digits."""
TOGETHER = 32
"""Tensors that are gathered before the host waits for the device. NCCL's timeout counts from when a collective is
enqueued: thousands of them, each fast, would exceed it.
"""
Groups = dict[tuple[Any, ...], list[nn.Parameter]]


class NativeEngine(Engine):
    """Single device, DataParallel, DDP, FSDP, HSDP and their combinations with tensor parallelism."""

    chunks: int | None = None
    scales_loss = False

    def __init__(self, run: Run, task: Task, world: World, weights: Path | None) -> None:
        """See strategies.build. Without ``weights`` the caller allocates the parameters, and then calls ``ready``."""
        whole = self.describe(run, task, world)
        run = self.run
        if run.mesh.axes("sequence"):
            from shardlab.parallel import context

            if run.model.folder:
                from shardlab.parallel import library_context

                library_context.check(run, whole)
            context.check(run, task, whole)
        self.parameter_names = models.trained_names(whole)
        self.split_share = contents.split_share(run, whole) if run.model.folder and run.mesh.tensor_parallel else None
        # Here, since a plan calls `ready` on fake tensors, and a new group reads the mesh's values.
        self._stage_group = world.stage_group() if tracked(whole) else None
        self.parts = self.cut(whole)
        for part, device in zip(self.parts, self.devices(), strict=True):
            self.batch = parallelize.apply(run, part, world)
            if weights:
                whole_part = len(self.meta_state_dict) == len(models.state(part))
                buffers = world.device if run.options.cpu_offload else device
                materialize(part, weights, device, whole=whole_part, buffers=buffers)
        if weights:
            self.ready([ddp.wrap(run, part, world) for part in self.parts])

    def ready(self, wrapped: list[nn.Module]) -> None:
        """Finish once the parts have their weights; ``wrapped``: the module to call instead of each part."""
        self.models = wrapped
        self.statistics = Statistics(self.parts, self._stage_group)
        self.groups = _by_placement(self.parameters())
        self.counted = _by_placement({name: value for name, value in self.parameters().items() if self.owns(name)})
        self.split: list[Any] = [
            parameter for parameter in self.parameters().values() if hasattr(parameter, "placements")
        ]
        trained = {name: value for name, value in self.parameters().items() if value.requires_grad}
        groups = [
            optimizers.group(own, alike)
            for own, parameters in optimizers.grouped(self.own_settings, trained)
            for alike in _by_placement(parameters).values()
        ]
        # A pipeline's stage may have nothing but frozen parameters.
        self.optimizer = optimizers.build(self.run.recipe, groups or [optimizers.group(optimizers.Own(1.0, 0.0), [])])
        self.average = WeightAverage(self.run.recipe.ema_decay, trained)

    def cut(self, model: nn.Module) -> list[nn.Module]:
        """Return the parts of the model that this rank holds."""
        return [model]

    def devices(self) -> list[torch.device]:
        """Return the device of each part."""
        return [torch.device("cpu") if self.run.options.cpu_offload else self.world.device] * len(self.parts)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters under the whole model's names; of one that several parts have, the first."""
        return {name: copies[0] for name, copies in self._copies().items()}

    def owns(self, name: str) -> bool:
        """Return whether this rank counts a parameter's gradient: another may have a tied one, too."""
        return True

    def train(self, mode: bool) -> None:
        self.task.training = mode
        for model in self.models:
            model.train(mode)

    def outputs(self, micro: MicroBatch) -> Outputs:
        """Return the model's outputs for a micro-batch."""
        if self.batch:
            self.batch.counts = micro.count > 0
        return self.task.outputs(self.models[0], micro.batch)

    def loss(self, micro: MicroBatch) -> Tensor:
        with self._loss_context():
            return plain(self.task.counted_loss(self.outputs(micro), micro))

    def forward_backward(self, micro: MicroBatch, scale: float, *, last: bool) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(ddp.synchronized(self.models[0], last))
            stack.enter_context(self._loss_context())
            outputs = self.outputs(micro)
            self.task.count(outputs, micro)
            loss = self.task.counted_loss(outputs, micro)
            (loss * scale).backward()
        if last:
            ddp.check_reduced(self.models[0])
        return plain(loss.detach())

    def step(self, learning_rate: float) -> Tensor:
        self._reduce_partial_gradients()
        norm = self.sum_over_parts(_squared_norm(self.counted, self.world.device)).sqrt()
        if self.run.recipe.max_grad_norm is not None:
            self._clip((self.run.recipe.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        optimizers.set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()
        self._renew_copies()
        self.average.update()
        self.zero_grad()
        return norm

    def balance(self, load: Tensor) -> None:
        for part in self.parts:
            cast(Any, part).balance(load)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()
        for _, copy in self._pairs():
            copy.grad = None

    def sum_over_parts(self, value: Tensor) -> Tensor:
        """Sum a scalar over the ranks that hold the other parts of the model."""
        return value

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        self._reduce_partial_gradients()
        parameters = self.parameters()
        gradients = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in parameters.items()}
        return self._collected(self.parameter_names, gradients)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._collected([*self.meta_state_dict], self.weights_state())

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._collected([*self.meta_state_dict], self.weights_state() | self.average.tensors)

    def weights_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        return {name: value.detach() for part in reversed(self.parts) for name, value in models.state(part).items()}

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """See Engine; the tensors were the parameters' own memory."""
        self._renew_copies()

    def create_optimizer_state(self, dtypes: Mapping[str, torch.dtype]) -> None:
        parameters = self.parameters()
        for full_name, dtype in dtypes.items():
            name, _, key = full_name.rpartition("/")
            if name in parameters and key != EMA:
                optimizers.create_state(self.optimizer, parameters[name], key, dtype)

    def optimizer_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        states = {
            f"{name}/{key}": value
            for name, parameter in self.parameters().items()
            for key, value in self.optimizer.state[parameter].items()
        }
        return states | self.average.states()

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        """See Engine; the tensors were the optimizer's own."""

    def tensors_by_kind(self) -> dict[str, list[Tensor]]:
        parameters = [each for copies in self._copies().values() for each in copies]
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        state += self.average.tensors.values()
        return {
            "weights": [local(parameter) for parameter in parameters],
            "gradients": [local(p.grad) for p in parameters if p.grad is not None],
            "optimizer": [local(value) for value in state if isinstance(value, Tensor)],
        }

    def whole(self, name: str, value: Tensor | None) -> Tensor:
        """Return the full tensor of that name; ``value`` is this rank's shard, None if it is on other ranks."""
        return plain(
            cast(Tensor, value).to(self.world.device)
        )  # offloaded shards are on the CPU, from which NCCL cannot send

    def _collected(self, names: list[str], values: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for number, name in enumerate(names):
            whole = self.whole(name, values.get(name))  # a collective: every rank takes part
            if number % TOGETHER == 0:
                wait(self.world.device)
            yield name, whole.detach()

    def _loss_context(self) -> Any:
        if not self.run.options.loss_parallel:
            return nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()

    def _copies(self) -> dict[str, list[nn.Parameter]]:
        """Return each parameter of this rank's parts; tied ones of several parts are copies of one."""
        copies: dict[str, list[nn.Parameter]] = defaultdict(list)
        for part in self.parts:
            for name, parameter in part.named_parameters():
                copies[name].append(parameter)
        return copies

    def _pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return (parameter that is trained, its copy in a later part)."""
        return [(first, copy) for first, *copies in self._copies().values() for copy in copies]

    @torch.no_grad()
    def _renew_copies(self) -> None:
        for first, copy in self._pairs():
            copy.copy_(first)

    def _reduce_partial_gradients(self) -> None:
        for first, copy in self._pairs():
            if copy.grad is not None:
                more = copy.grad.to(first.device)
                first.grad = more if first.grad is None else first.grad + more
                copy.grad = None
        # A norm's weights under sequence parallelism: each rank has the gradient of its part of the sequence.
        for parameter in self.split:
            gradient: Any = parameter.grad
            placements = parameter.placements
            if gradient is not None and gradient.placements != placements:
                whole = gradient.to(self.world.device).redistribute(placements=placements)
                parameter.grad = whole.to(gradient.device)

    def _clip(self, factor: Tensor) -> None:
        for group in self.groups.values():
            if gradients := [local(p.grad) for p in group if p.grad is not None]:
                torch._foreach_mul_(gradients, factor.to(gradients[0].device))


def _by_placement(parameters: dict[str, nn.Parameter]) -> Groups:
    """Group trained parameters by (device, dtype, mesh, placements), None and () for plain tensors: foreach needs
    uniform groups.
    """
    groups: Groups = defaultdict(list)
    for parameter in parameters.values():
        if not parameter.requires_grad:
            continue
        # Check the attribute, not the type: importing DTensor takes half a second that plain parameters do not need.
        mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
        groups[parameter.device, parameter.dtype, mesh, placements].append(parameter)
    return dict(groups)


def _squared_norm(groups: Groups, device: torch.device) -> Tensor:
    """Return the squared L2 norm of the gradients, a scalar; one reduction per mesh axis over which a group is sharded.

    On a CPU rows are summed in float64: a float32 norm of a million values is off in the fifth digit there. GPUs reduce
    in trees, and their float64 is slow: there, it is at least float32.
    """
    total = torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
    for (*_, mesh, placements), parameters in groups.items():
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        if not gradients:
            continue
        if gradients[0].device.type == "cpu":
            norms = torch.cat([_row_norms(gradient) for gradient in gradients]).double()
        else:
            norms = torch.stack(
                torch._foreach_norm(gradients, 2, torch.promote_types(gradients[0].dtype, torch.float32))
            )
        square = norms.square().sum().to(device)  # offloaded gradients are on the CPU, which NCCL does not support
        for axis, placement in enumerate(placements):
            if not placement.is_replicate():
                torch.distributed.all_reduce(square, group=mesh.get_group(axis))
        total = total + square
    return total


def _row_norms(gradient: Tensor) -> Tensor:
    """Return norms along the first dimension, or of the whole tensor in float64 if rows are long: (parts,) or (1,)."""
    if gradient.dim() > 1 and 0 < gradient.numel() <= LONGEST_ROW * gradient.shape[0]:
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        return torch.linalg.vector_norm(gradient, dim=tuple(range(1, gradient.dim())), dtype=dtype)
    return torch.linalg.vector_norm(gradient, dtype=torch.float64).reshape(1)
