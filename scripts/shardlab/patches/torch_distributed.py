"""PyTorch's process groups: one over gloo where the default group is bound to a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def default_group_unbound() -> Iterator[None]:
    """The default group is bound to no device inside.

    PyTorch 2.13.0 asks a new group for the backend of the device that the default group is bound to, and gloo has none
    for a GPU ("No backend type associated with device type cuda").
    """
    whole = dist.distributed_c10d._get_default_group()
    bound, whole.bound_device_id = whole.bound_device_id, None
    try:
        yield
    finally:
        whole.bound_device_id = bound
