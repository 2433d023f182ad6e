"""Distributed data parallel (Li et al., 2020, arXiv:2006.15704): whole replicas, averaged gradients."""

import logging

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from shardlab.training.distributed import text_of_mesh

BROADCAST = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
"""Types that both Gloo and NCCL send. Buffers of others (complex, int16) stay as each rank computes them."""
log = logging.getLogger(__name__)


def apply(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Wrap a model that is whole on this rank's device; its gradients are views of the buckets."""
    kept = [name for name, buffer in model.named_buffers() if buffer.dtype not in BROADCAST]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, kept)
    log.info("Applied DDP, mesh %s", text_of_mesh(mesh))
    return DistributedDataParallel(model, device_mesh=mesh, gradient_as_bucket_view=True)
