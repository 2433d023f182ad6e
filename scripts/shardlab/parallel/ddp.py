"""Distributed data parallel (Li et al., 2020, arXiv:2006.15704): whole replicas, averaged gradients."""

import logging
import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from shardlab.errors import UserError
from shardlab.runtime.distributed import World, text_of_mesh
from shardlab.settings.types import Run

BROADCAST = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
"""Types that both Gloo and NCCL send. Buffers of others (complex, int16) stay as each rank computes them."""
log = logging.getLogger(__name__)


def wrap(run: Run, model: nn.Module, world: World) -> nn.Module:
    """Return the module to call instead of the model, now with its weights: it averages gradients over replicas."""
    if run.options.single_process == "dp":
        return in_one_process(model, world.devices)
    if (mesh := world.submesh(run.mesh.replica_axes)) is not None and not run.mesh.sharded:
        return apply(model, mesh, find_unused_parameters=run.options.find_unused_parameters)
    return model


def synchronized(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Context of a micro-batch: replicas average their gradients once, after the ``last`` one."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    if set_requires_all_reduce := getattr(model, "set_requires_all_reduce", None):
        set_requires_all_reduce(last)  # HSDP; shards are reduced each time, so that no rank holds whole gradients
    return nullcontext()


def apply(model: nn.Module, mesh: DeviceMesh, *, find_unused_parameters: bool) -> nn.Module:
    """Wrap a model that is whole on this rank's device; its gradients are views of the buckets."""
    kept = [name for name, buffer in model.named_buffers() if buffer.dtype not in BROADCAST]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, kept)
    log.info("Applied DDP, mesh %s", text_of_mesh(mesh))
    return DistributedDataParallel(
        model, device_mesh=mesh, gradient_as_bucket_view=True, find_unused_parameters=find_unused_parameters
    )


def check_reduced(model: nn.Module) -> None:
    """Check that the last backward pass of a step reduced all gradients: DDP itself notices in the next step.

    Raises:
        UserError: parameters without a gradient, on this rank, kept it from that; names them.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    try:
        model._check_reducer_finalized()
    except RuntimeError as error:
        listed = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if listed is None:
            raise
        names = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
        missing = ", ".join(names[int(number)] for number in listed[1].split())
        raise UserError(
            f"the loss of this step does not depend on {missing}, and DDP waits for their gradients; set "
            "find_unused_parameters in the strategy's entry in config/strategies.yaml, or remove these parameters."
        ) from error


def in_one_process(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    """Wrap a model that is on the first device in ``torch.nn.DataParallel``, which copies it to all in every step.

    All CPUs are one device, on which the model runs unchanged.
    """
    log.info("Applied DataParallel over %s", ", ".join(map(str, devices)))
    if devices[0].type == "cpu":
        return model  # DataParallel would take the GPUs of this machine, if it has some
    return nn.DataParallel(model, device_ids=devices)
