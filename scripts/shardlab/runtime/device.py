"""A rank's accelerator through PyTorch's generic functions; everything specific to CUDA and ROCm is in this file.

No function uses the current device, which is per thread and device 0 in a new thread.
"""

import os
import random
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from shardlab.errors import UserError
from shardlab.runs import gpus

T = TypeVar("T")
PCI = Path("/sys/bus/pci/devices")
BUSY = 2 * 2**30
"""Bytes in use above which an idle GPU counts as used by another process: a CUDA context takes about 0.5 GiB."""


def device_for_rank(site_device: str) -> torch.device:
    """Return this rank's device, or the only one; a site's ``cuda`` means the accelerator that PyTorch was built for.

    Raises:
        UserError: the site says cuda, and there are fewer GPUs than ranks on this node.
    """
    if site_device == "cpu":
        return torch.device("cpu")
    number, count = int(os.environ.get("LOCAL_RANK", 0)), torch.accelerator.device_count()
    if number >= count:
        raise UserError(f"rank {number} of this node needs its own GPU, but {_seen(count)}")
    return accelerator(number)


def devices_for_process(site_device: str, count: int) -> list[torch.device]:
    """Return the devices of a strategy that drives ``count`` of them from one process; all CPUs are one device.

    Raises:
        UserError: the site says cuda, and there are fewer GPUs.
    """
    if site_device == "cpu":
        return [torch.device("cpu")] * count
    available = torch.accelerator.device_count()
    if count > available:
        raise UserError(f"this strategy drives {count} GPUs from one process, but {_seen(available)}")
    return [accelerator(number) for number in range(count)]


def accelerator(number: int) -> torch.device:
    """Return this node's accelerator with that number."""
    kind = torch.accelerator.current_accelerator()
    return torch.device(kind.type if kind else "cuda", number)


def _seen(count: int) -> str:
    return f"PyTorch sees {count}: {gpus.why_missing(torch.version.cuda, torch.version.hip)}."


def use(device: torch.device) -> None:
    """Set this thread's current device; call it before anything else in a thread."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)


def bind_to_near_cores(device: torch.device) -> None:
    """Bind all threads of this process to the CPU cores next to its GPU, by Linux's list of them. Its memory follows:
    Linux allocates it near the core that touches it first.

    A process that was given fewer of these cores than it has threads, as on a shared node, is left as it is. torchrun's
    --numa-binding would end it there, and wherever the program numactl is missing.
    """
    if device.type != "cuda":
        return
    gpu: Any = torch.cuda.get_device_properties(device)
    listed = PCI / f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0" / "local_cpulist"
    parts = re.findall(r"(\d+)(?:-(\d+))?", listed.read_text()) if listed.exists() else []
    near = {core for first, last in parts for core in range(int(first), int(last or first) + 1)}
    cores = near & os.sched_getaffinity(0)
    if len(cores) < torch.get_num_threads():
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)


def warn_if_shared(device: torch.device) -> None:
    """Warn if another process uses the device; call it before this process has any tensors there."""
    if (total := memory(device)) is None:
        return
    used = total - torch.accelerator.get_memory_info(device)[0]
    if used > BUSY:
        print(
            f"warning: {device} on {os.uname().nodename} has {used / 2**30:.1f} GiB in use by another process, so this "
            "run may run out of memory and its timings are unreliable; request GPUs for exclusive use",
            file=sys.stderr,
            flush=True,
        )


def exact() -> None:
    """Disable TF32, which rounds the factors of float32 products and convolutions to 10 bits, so that strategies would
    differ by 1e-3. PyTorch's default allows it in convolutions.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def deterministic() -> None:
    """Make results bitwise reproducible: nondeterministic kernels are replaced, or raise an error.

    Call it before the first use of the device, for cuBLAS (docs.pytorch.org/docs/stable/notes/randomness.html).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def seed(device: torch.device, value: int) -> None:
    """Seed every device of this process: if it drives several, each one draws dropout masks. Models may also draw from
    Python's and NumPy's global generators.
    """
    random.seed(value)
    np.random.seed(value % 2**32)
    # torch.manual_seed would also record a stack trace for each missing kind of device, which takes 1 ms.
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(value)


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Put the generators of this process and of a device back afterwards."""
    plain, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):  # and the CPU's
        yield
    random.setstate(plain)
    np.random.set_state(numpy)


def wait(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def name(device: torch.device) -> str:
    """Return the device's model name, or ``cpu``."""
    return "cpu" if device.type == "cpu" else str(torch.get_device_module(device).get_device_name(device))


def memory(device: torch.device) -> int | None:
    """Return the device's memory in bytes; None for a CPU."""
    return None if device.type == "cpu" else int(torch.accelerator.get_memory_info(device)[1])


def peak_memory(devices: list[torch.device]) -> int:
    """Return the most bytes that tensors took on one of these since ``forget_peak``; on a CPU, its peak RSS."""
    if devices[0].type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(int(torch.accelerator.max_memory_allocated(device)) for device in devices)


def forget_peak(devices: list[torch.device]) -> None:
    """Reset ``peak_memory``; on a CPU the system has no way to reset it."""
    for device in devices:
        if device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats(device)


class Arriving:
    """Values being copied from the device to the host, which continues until it needs them."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._arrived: Any = None
        if values.device.type != "cpu":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.Event(values.device)
            self._arrived.record(torch.accelerator.current_stream(values.device))

    def tolist(self) -> list[Any]:
        """Return the values; waits for them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return list(self._values.tolist())


class Prefetch:
    """Tensors made on a separate stream, by another thread, while the device computes. On a CPU: made directly."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.Stream(device) if device.type != "cpu" else None

    def made(self, make: Callable[[], T]) -> tuple[T, Any]:
        """Return what ``make`` returns, and the event after which it is on the device."""
        if self._stream is None:
            return make(), None
        use(self.device)
        with self._stream:
            result = make()
            done = torch.Event(self.device)
            done.record(self._stream)
        return result, done

    def ready(self, tensors: list[Tensor], done: Any) -> None:
        """Make the current stream wait for the tensors, and keep their memory until the stream has used them."""
        if done is None:
            return
        current = torch.accelerator.current_stream(self.device)
        current.wait_event(done)
        for tensor in tensors:
            tensor.record_stream(current)
