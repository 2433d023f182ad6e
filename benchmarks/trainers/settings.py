"""Settings that a trainer actually uses, read from its wrapper, its optimizer and a step of its model."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from shardlab.errors import UserError
from shardlab.models._chain import Chain

DDP = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
OPTIMIZER = ("lr", "weight_decay", "betas", "eps", "amsgrad", "fused")


class Watch:
    """Recorder of one step of a trainer: create it when the step begins, call ``end`` when it is over."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """``model``: what the trainer calls, wrapped; ``optimizer``: what it steps, wrapped or not."""
        self.model, self.optimizer = model, optimizer
        plain = next(module for module in model.modules() if isinstance(module, Chain))
        self.found: dict[str, Any] = {
            "training mode": model.training,
            "threads": torch.get_num_threads(),
            "weights": str(next(plain.parameters()).dtype).removeprefix("torch."),
            "autocast": False,
            "samples of a rank": 0,
            "forward passes": 0,
        }
        self._handle = plain.register_forward_pre_hook(self._forward)

    def _forward(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.found["autocast"] |= torch.is_autocast_enabled("cpu")
        self.found["samples of a rank"] += len(inputs[0])
        self.found["forward passes"] += 1

    def end(self) -> dict[str, Any]:
        """Return name and value of each setting."""
        self._handle.remove()
        return self.found | of_wrapper(self.model) | of_optimizer(self.optimizer)


def of_wrapper(model: Any) -> dict[str, Any]:
    """Return the settings of DDP, FSDP2 or DeepSpeed."""
    if isinstance(model, DistributedDataParallel):
        reported = model._get_ddp_logging_data()
        sizes = reported.get(
            "rebuilt_bucket_sizes", reported["bucket_sizes"]
        )  # a search for unused parameters rebuilds none
        return {"wrapper": "DDP"} | {name: getattr(model, name) for name in DDP} | {"buckets, bytes": sizes}
    units: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if units:
        groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
        reshard = ["yes" if group.post_forward_mesh_info else "no" for group in groups]
        return {"wrapper": "FSDP2", "units": len(units), "resharded after forward": ", ".join(reshard)}
    if hasattr(model, "zero_optimization_stage"):
        return {
            "wrapper": f"DeepSpeed ZeRO {model.zero_optimization_stage()}",
            "reduce bucket, elements": model.zero_reduce_bucket_size(),
            "gather bucket, elements": model.zero_allgather_bucket_size(),
            "overlapped": bool(model.zero_overlap_comm()),
            "clipped at": model.gradient_clipping(),
        }
    return {"wrapper": "none"}


def of_optimizer(optimizer: Any) -> dict[str, Any]:
    """Return the settings of the PyTorch optimizer inside any wrappers."""
    while not type(optimizer).__module__.startswith("torch.optim"):
        optimizer = optimizer.optimizer
    values = {name: dict.fromkeys(group[name] for group in optimizer.param_groups) for name in OPTIMIZER}
    return {"optimizer": type(optimizer).__name__} | {name: _shown([*each]) for name, each in values.items()}


def _shown(values: list[Any]) -> str:
    return ", ".join(str(value) for value in values)


def same(settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the settings that all trainers share, by trainer.

    Raises:
        UserError: one of them trains with another value.
    """
    first, *others = settings
    for name in others:
        for key in dict.fromkeys([*settings[first], *settings[name]]):
            local, value = settings[first].get(key), settings[name].get(key)
            if local != value:
                raise UserError(
                    f"{name} and {first} do different work: {key} is {value} and {local}; make them equal in "
                    "benchmarks/trainers."
                )
    return settings[first]
