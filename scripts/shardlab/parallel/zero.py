"""DeepSpeed ZeRO, stages 1 to 3 (Rajbhandari et al., 2020, arXiv:1910.02054)."""

import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardlab import models
from shardlab.models.weights import check_weights, materialize, open_weights
from shardlab.parallel import parallelize
from shardlab.patches import deepspeed_startup
from shardlab.runtime import batch_norm, optimizers
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.optimizers import EMA, WeightAverage
from shardlab.runtime.tasks import MicroBatch, Outputs, Task
from shardlab.settings.deepspeed import sized
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run

if not (dist.is_initialized() and dist.get_backend() == "nccl"):
    # On a machine with GPUs DeepSpeed would use one, whatever the site says.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

with deepspeed_startup.uncompiled():
    import deepspeed
    import deepspeed.runtime.zero.muon.original_muon
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_grad,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)

log = logging.getLogger(__name__)

SCALER = {"cur_scale": float, "cur_iter": int, "last_overflow_iter": int, "cur_hysteresis": int}
"""Attributes of DeepSpeed's loss scalers that change during training; not every scaler has all of them."""


def scaler_state(scaler: Any) -> dict[str, Tensor]:
    """Return ``loss_scale/<key>``: scalars in float64, which holds every scale and step exactly."""
    return {
        f"loss_scale/{key}": torch.tensor(getattr(scaler, key), dtype=torch.float64)
        for key in SCALER
        if hasattr(scaler, key)
    }


def restore_scaler(scaler: Any, state: dict[str, Tensor]) -> None:
    """Restore the scaler's state from ``scaler_state``; without it, that of a checkpoint in other arithmetic, none."""
    for key, kind in SCALER.items():
        if f"loss_scale/{key}" in state:
            setattr(scaler, key, kind(state[f"loss_scale/{key}"]))


def _set(parameter: nn.Parameter, whole: Tensor, rank: int, key: str | None = None) -> None:
    """Set this rank's part of a master weight or, with ``key``, of that tensor of its optimizer's state."""
    if not hasattr(parameter, "ds_id"):
        if key is None:
            safe_set_full_fp32_param(parameter, whole)
        else:
            safe_set_full_optimizer_state(parameter, whole, key)
        return
    # DeepSpeed's own functions for stage 3 fail if the tensor is not divisible by the number of ranks.
    size: int = parameter.partition_numel()  # type: ignore[attr-defined]
    part = whole.flatten()[size * rank :][:size]
    part = nn.functional.pad(part, (0, size - part.numel()))
    if key is None:
        safe_set_local_fp32_param(parameter, part)
    else:
        safe_set_local_optimizer_state(parameter, part, key)


class ZeroEngine(Engine):
    """DeepSpeed's engine, with the recipe's optimizer, as an Engine."""

    chunks: int | None = None

    def __init__(self, run: Run, task: Task, world: World, weights: Path) -> None:
        deepspeed_startup.without_shared_memory()
        deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)
        whole = self.describe(run, task, world)
        run = self.run
        self.precision = PRECISIONS[run.recipe.arithmetic]
        self.scales_loss = self.precision.scales_loss
        self.weights_file = weights
        self.config = sized(run.engine_config or {}, self.parameter_count)
        self.plain = whole
        if run.zero_stage == 3:
            self._shard(whole, weights)
        else:
            materialize(whole, weights, world.device)
        self.batch = None
        if run.recipe.sync_batch_norm and world.size > 1:
            self.batch = batch_norm.synchronize(self.plain, None, world.device)
        # DeepSpeed does the rest, such as sharding and precision, according to its own JSON.
        parallelize.recompute(self.plain, run.model.blocks, run.recipe.activation_checkpointing)
        parallelize.compile_forward(self.plain, run.model.blocks, run.recipe)
        self.model, self.optimizer, _, _ = deepspeed.initialize(
            model=self.plain.to(world.device),
            optimizer=optimizers.build(run.recipe, self.groups()),
            config=dict(self.config),
        )
        self.parts = [self.plain]
        self.statistics = batch_norm.Statistics(self.parts, world.stage_group())
        log.info("Applied DeepSpeed ZeRO stage %d over %d ranks", run.zero_stage, world.size)
        if not self.precision.is_full:
            # DeepSpeed casts its master weights from the low-precision ones; training must start from the file's.
            with open_weights(weights) as file:
                for name, parameter in self.trained().items():
                    _set(parameter, file.get_tensor(name), world.rank)
        partitions = {str(number): partition for number, partition in enumerate(self._partitions())}
        self.average = WeightAverage(run.recipe.ema_decay, partitions)

    def _shard(self, model: nn.Module, weights: Path) -> None:
        """Load a model's weights, of which each rank holds only its part; one is whole at a time.

        ``deepspeed.zero.Init`` around the constructor would take the values away from constructors that copy, reshape
        or read them (weight norm, deep copies of a layer).
        """
        dtype = getattr(torch, self.precision.dtype)
        names: dict[int, list[str]] = defaultdict(list)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names[id(parameter)].append(name)
        for name, buffer in [*model.named_buffers()]:
            if buffer.is_meta:
                owner, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(owner), leaf, torch.empty_like(buffer, device=self.world.device))
        with open_weights(weights) as file, torch.no_grad():
            check_weights(file, self.meta_state_dict, weights, whole=True)
            for name, value in models.state(model).items():
                whole = file.get_tensor(name)
                if not isinstance(value, nn.Parameter):
                    value.copy_(whole)
                    continue
                if whole.is_floating_point() and not self.precision.is_full:
                    whole = whole.to(dtype)
                real = nn.Parameter(whole.to(self.world.device), requires_grad=value.requires_grad)
                deepspeed.zero.Init(module=nn.ParameterList([real]), config_dict_or_path=dict(self.config))
                for alias in names[id(value)]:
                    owner, _, leaf = alias.rpartition(".")
                    setattr(model.get_submodule(owner), leaf, real)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that DeepSpeed's optimizer updates: not frozen ones, nor those without values."""
        return {
            name: parameter
            for name, parameter in self.plain.named_parameters()
            if parameter.requires_grad and self.meta_state_dict[name].numel()
        }

    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of the trained parameters, each of which DeepSpeed partitions by itself."""
        parts = [*optimizers.grouped(self.own_settings, self.trained())]
        return [optimizers.group(own, parameters.values()) for own, parameters in parts]

    def _zeros(self, name: str) -> Tensor:
        return torch.zeros_like(self.meta_state_dict[name], device=self.world.device)

    def train(self, mode: bool) -> None:
        self.task.training = mode
        self.model.train(mode)

    def outputs(self, micro: MicroBatch) -> Outputs:
        """Return the model's outputs for a micro-batch."""
        if self.batch:
            self.batch.counts = micro.count > 0
        positional, keywords = self.task.inputs(micro.batch)
        if not self.precision.is_full:
            low = getattr(torch, self.precision.dtype)
            positional = tuple(value.to(low) if value.is_floating_point() else value for value in positional)
        outputs: Outputs = self.model(*positional, **keywords)
        return outputs

    def loss(self, micro: MicroBatch) -> Tensor:
        return self.task.counted_loss(self.outputs(micro), micro)

    def forward_backward(self, micro: MicroBatch, scale: float, *, last: bool) -> Tensor:
        outputs = self.outputs(micro)
        self.task.count(outputs, micro)
        loss = self.task.counted_loss(outputs, micro)
        self.model.backward(
            loss * (scale * self.run.recipe.gradient_accumulation_steps)
        )  # DeepSpeed divides by accumulate
        if not last:
            self.model.step()  # counts the micro-batch
        return loss.detach()

    def step(self, learning_rate: float) -> Tensor:
        optimizers.set_learning_rate(self.optimizer, learning_rate)
        self.model.step()
        if self.model.was_step_applied():
            self.average.update()
        # DeepSpeed has waited for the device here, and knows the result.
        norm = self.model.get_global_grad_norm() if self.model.was_step_applied() else math.inf
        return torch.as_tensor(norm, device=self.world.device)

    def balance(self, load: Tensor) -> None:
        self.plain.balance(load)  # type: ignore[operator]

    def zero_grad(self) -> None:
        """See Engine; training under DeepSpeed stops instead (see compatibility.py)."""
        raise NotImplementedError

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        trained = self.trained()
        for name in models.trained_names(self.plain):
            yield name, safe_get_full_grad(trained[name]) if name in trained else self._zeros(name)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See Engine; in low precision, the float32 master weights, which the optimizer updates, and frozen weights as
        they are in the file, of which the model has roundings.
        """
        trained = self.trained()
        with open_weights(self.weights_file) as file:
            for name, value in models.state(self.plain).items():
                like = self.meta_state_dict[name]
                if name in trained:
                    yield name, safe_get_full_fp32_param(trained[name]).to(like.dtype, copy=True)
                elif isinstance(value, nn.Parameter) and value.dtype != like.dtype:
                    yield name, file.get_tensor(name).to(self.world.device)
                else:
                    with deepspeed.zero.GatheredParameters([value], enabled=hasattr(value, "ds_id")):
                        yield name, value.detach().to(like.dtype, copy=True)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Let the master weights be their averages, which DeepSpeed then gathers or divides as it does the weights."""
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def averaged_weights(self) -> Iterator[tuple[str, Tensor]]:
        with self._averaged():
            yield from self.weights()

    def weights_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        """See Engine; whole tensors in CPU memory, like those of ``optimizer_state``, written by rank 0."""
        return {name: value.cpu() for name, value in self.weights() if self.world.is_rank0 or not to_write}

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """See Engine; loads into the parameters, and into DeepSpeed's own copy, which the optimizer updates."""
        trained = self.trained()
        for name, value in models.state(self.plain).items():
            with deepspeed.zero.GatheredParameters([value], modifier_rank=0, enabled=hasattr(value, "ds_id")):
                if self.world.is_rank0 or not hasattr(value, "ds_id"):
                    value.detach().copy_(state[name])
            if name in trained:
                _set(trained[name], state[name], self.world.rank)

    def create_optimizer_state(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """See Engine; every parameter of a partition has the state of that partition."""
        kinds = {name.rpartition("/")[2]: dtype for name, dtype in dtypes.items() if not name.startswith("loss_scale/")}
        kinds.pop(EMA, None)
        for partition in self._partitions():
            for key, dtype in kinds.items():
                optimizers.create_state(self.optimizer.optimizer, partition, key, dtype)
        if kinds:
            self._link_state()

    def _partitions(self) -> list[Tensor]:
        """Return this rank's parts of the master weights, which the optimizer updates."""
        groups = [group["params"] for group in self.optimizer.optimizer.param_groups]
        return getattr(self.optimizer, "fp32_partitioned_groups_flat", None) or [*chain.from_iterable(groups)]

    def _link_state(self) -> None:
        """Let parameters know their parts of the partitions' states.

        DeepSpeed 0.19.8 does so once, after the first update of the first group, when the others have no state yet.
        """
        if hasattr(self.optimizer, "_lazy_init_hp_params_optimizer_state"):
            self.optimizer._hp_optimizer_states_linked = False
            self.optimizer._lazy_init_hp_params_optimizer_state()

    def optimizer_state(self, *, to_write: bool = False) -> dict[str, Tensor]:
        """See Engine; whole tensors, because ZeRO's partitions do not follow the parameters' shapes."""
        flat: dict[str, Any] = next(iter(self.optimizer.optimizer.state.values()), {})
        if flat:
            self._link_state()
        state = {}
        for name, parameter in self.trained().items():
            for key, value in flat.items():
                scalar = not isinstance(value, Tensor) or value.dim() == 0
                whole = (
                    torch.as_tensor(value, dtype=torch.float32).clone()
                    if scalar
                    else safe_get_full_optimizer_state(parameter, key)  # a collective
                )
                if self.world.is_rank0 or not to_write:
                    state[f"{name}/{key}"] = whole.cpu()
        if self.average.tensors:
            with self._averaged():
                for name, parameter in self.trained().items():
                    whole = safe_get_full_fp32_param(parameter)
                    if self.world.is_rank0 or not to_write:
                        state[f"{name}/{EMA}"] = whole.to("cpu", copy=True)
        if self.scales_loss and (self.world.is_rank0 or not to_write):
            state |= scaler_state(self.optimizer.loss_scaler)
        return state

    def load_optimizer_state(self, state: dict[str, Tensor]) -> None:
        for name, parameter in self.trained().items():
            for key in next(iter(self.optimizer.optimizer.state.values()), {}):
                value = state.get(f"{name}/{key}")
                if value is None:  # the strategy that wrote it had no gradient for this parameter yet
                    continue
                if value.dim():
                    _set(parameter, value, self.world.rank, key)
                    continue
                for flat in self.optimizer.optimizer.state.values():
                    flat[key] = value.clone() if isinstance(flat[key], Tensor) else value.item()
        if self.average.tensors:
            with self._averaged():
                for name, parameter in self.trained().items():
                    _set(parameter, state[f"{name}/{EMA}"], self.world.rank)
        if self.scales_loss:
            restore_scaler(self.optimizer.loss_scaler, state)

    def tensors_by_kind(self) -> dict[str, list[Tensor]]:
        """See Engine. The optimizer updates a flat copy of its part of the weights, the master weights; in stage 3 with
        float32 they are the weights themselves, so those come last.
        """
        parameters = [*self.plain.parameters()]
        groups = self.optimizer.optimizer.param_groups
        flat = [value for group in groups for value in group["params"]]
        state = [value for values in self.optimizer.optimizer.state.values() for value in values.values()]
        state += self.average.tensors.values()
        trained = self.trained().values()
        gradients = [safe_get_local_grad(p) if self.run.zero_stage == 3 else p.grad for p in trained]
        averaged = getattr(self.optimizer, "averaged_gradients", None) or {}
        gradients += [value for values in averaged.values() for value in values or []]
        return {
            "master_weights": flat,
            "weights": [getattr(parameter, "ds_tensor", parameter) for parameter in parameters],
            "gradients": [value for value in gradients if value is not None],
            "optimizer": [value for value in state if isinstance(value, Tensor)],
        }
