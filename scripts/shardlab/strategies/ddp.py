"""Distributed data parallel (Li et al., 2020, arXiv:2006.15704): whole replicas, averaged gradients."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


def apply(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Wrap a model that is whole on this rank's device; its gradients are views of the buckets."""
    return DistributedDataParallel(model, device_mesh=mesh, gradient_as_bucket_view=True)
