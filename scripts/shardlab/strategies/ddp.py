"""Distributed data parallel (Li et al., 2020, arXiv:2006.15704): whole replicas, averaged gradients."""

import logging

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from shardlab.training.distributed import text_of_mesh

log = logging.getLogger(__name__)


def apply(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Wrap a model that is whole on this rank's device; its gradients are views of the buckets."""
    log.info("Applied DDP, mesh %s", text_of_mesh(mesh))
    return DistributedDataParallel(model, device_mesh=mesh, gradient_as_bucket_view=True)
