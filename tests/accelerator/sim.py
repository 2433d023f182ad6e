"""A simulated accelerator for machines without a GPU: PyTorch sees devices of the kind ``sim``.

Every ``import torch`` loads it where its folder is on the path (PyTorch's autoload of out-of-tree backends), so the
programs run on it as they are. It computes on the CPU, and refuses what a GPU would compute wrongly or wait for: see
csrc/. ``SIM_DEVICES`` (4) says how many there are.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist


def start() -> None:
    """Register the device and its process group's backend: the entry point of torch.backends."""
    torch.utils.rename_privateuse1_backend("sim")
    import _sim  # type: ignore[import-not-found]

    torch._register_device_module("sim", Device(_sim))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch._C._broadcast_coalesced, torch._C._scatter, torch._C._gather = _broadcast, _scatter, _gather

    def group(store, rank, size, timeout):
        return _sim.Collectives(dist.ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend("sim", group, devices=["sim"])
    dist.device_mesh.split_group = _split


def _split(split_ranks, timeout, group_desc, **_):
    """The groups of a mesh, which NCCL splits off the one of all ranks, are made."""
    groups = [dist.new_group(ranks, timeout, group_desc=group_desc) for ranks in split_ranks]
    return next(group for group, ranks in zip(groups, split_ranks, strict=True) if dist.get_rank() in ranks)


# What DataParallel calls, which PyTorch has in CUDA's part alone.


def _broadcast(tensors, devices, buffer_size):
    return [[tensor.to(torch.device("sim", device)) for tensor in tensors] for device in devices]


def _scatter(tensor, devices, sizes, dim, streams):
    parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
    return [part.to(torch.device("sim", device)) for part, device in zip(parts, devices, strict=False)]


def _gather(tensors, dim, device):
    return torch.cat([tensor.to(torch.device("sim", device)) for tensor in tensors], dim)


class Device:
    """``torch.sim``, with what PyTorch asks a device's module for."""

    Event = torch.Event

    def __init__(self, native) -> None:
        self.native = native
        self.device_count = native.device_count
        self.current_device = native.current_device
        self.forbid_host_reads = native.forbid_host_reads

    def is_available(self) -> bool:
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        pass

    def set_device(self, device) -> None:
        self.native.set_device(self._index(device))

    def get_device_name(self, device=None) -> str:
        return f"simulated accelerator {self._index(device)}"

    def synchronize(self, device=None) -> None:
        torch.accelerator.synchronize(self._index(device))

    def Stream(self, device=None, priority=0):  # noqa: N802
        return torch.Stream(torch.device("sim", self._index(device)), priority=priority)

    def current_stream(self, device=None):
        return torch.accelerator.current_stream(torch.device("sim", self._index(device)))

    @contextmanager
    def stream(self, stream):
        if stream is None:
            yield
            return
        with stream:
            yield

    @contextmanager
    def device(self, device):
        before = self.current_device()
        self.set_device(device)
        yield
        self.set_device(before)

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    # No training of the tests draws on a device.

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device="sim"):
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state, device="sim") -> None:
        pass

    def _index(self, device) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(device).index if device is not None else None
        return self.current_device() if index is None else index
