"""A rank's accelerator, by PyTorch's generic functions; what only CUDA and ROCm have is in this file alone.

No function takes the current device: that belongs to a thread, and in a new one it is device 0.
"""

import os
import resource
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from shardlab.errors import UserError
from shardlab.launch import gpus

T = TypeVar("T")


def of_rank(site_device: str) -> torch.device:
    """The device of this rank, or of the only one: a site's ``cuda`` is the accelerator that this PyTorch is built for.

    Raises:
        UserError: the site says cuda, and there are fewer GPUs than ranks on this node.
    """
    if site_device == "cpu":
        return torch.device("cpu")
    number, found = int(os.environ.get("LOCAL_RANK", 0)), torch.accelerator.device_count()
    if number >= found:
        raise UserError(f"rank {number} of this node needs a GPU of its own, but {_seen(found)}")
    return of_number(number)


def of_process(site_device: str, count: int) -> list[torch.device]:
    """The devices of a strategy that drives ``count`` of them from one process; CPUs are one device.

    Raises:
        UserError: the site says cuda, and there are fewer GPUs.
    """
    if site_device == "cpu":
        return [torch.device("cpu")] * count
    found = torch.accelerator.device_count()
    if count > found:
        raise UserError(f"this strategy drives {count} GPUs from one process, but {_seen(found)}")
    return [of_number(number) for number in range(count)]


def of_number(number: int) -> torch.device:
    """The accelerator of that number on this node."""
    kind = torch.accelerator.current_accelerator()
    return torch.device(kind.type if kind else "cuda", number)


def _seen(found: int) -> str:
    return f"PyTorch sees {found}: {gpus.why_missing(found, torch.version.cuda, torch.version.hip)}."


def use(device: torch.device) -> None:
    """Make it this thread's current device: the first thing that a thread does with it."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)


def warn_if_shared(device: torch.device) -> None:
    """Say that another process uses the device; before this one has any tensors there."""
    if (whole := memory(device)) is None:
        return
    used = whole - torch.accelerator.get_memory_info(device)[0]
    if used > gpus.BUSY_MIB * 2**20:
        print(
            f"warning: {device} on {os.uname().nodename} has {used / 2**30:.1f} GiB in use by another process, so this "
            "run may run out of memory and its times are not its own; ask for GPUs of your own",
            file=sys.stderr,
            flush=True,
        )


def exact() -> None:
    """No TF32, which rounds the factors of float32 products and convolutions to 10 bits: the strategies would differ
    by 1e-3. PyTorch's own default allows it in convolutions.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def deterministic() -> None:
    """The same bits at every call: kernels that add in any order are replaced, or raise an error.

    Before the first use of the device, for cuBLAS (docs.pytorch.org/docs/stable/notes/randomness.html).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def seed(device: torch.device, value: int) -> None:
    """Seed every device of this process: with one process for several, each draws dropout masks."""
    # torch.manual_seed would also note, for each kind of device that is not there, where it was called from: 1 ms.
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(value)


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def name(device: torch.device) -> str:
    """Of the device's make, or ``cpu``."""
    return "cpu" if device.type == "cpu" else str(torch.get_device_module(device).get_device_name(device))


def has_float8(device: torch.device) -> bool:
    """True where it multiplies matrices of float8: NVIDIA's from compute capability 8.9 on; a CPU emulates it."""
    if device.type != "cuda" or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)


def memory(device: torch.device) -> int | None:
    """Bytes that the device has; None for a CPU."""
    return None if device.type == "cpu" else int(torch.accelerator.get_memory_info(device)[1])


def peak_memory(devices: list[torch.device]) -> int:
    """The most bytes that tensors took of one of these since ``forget_peak``; on a CPU, the process's resident peak."""
    if devices[0].type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(int(torch.accelerator.max_memory_allocated(device)) for device in devices)


def forget_peak(devices: list[torch.device]) -> None:
    """``peak_memory`` counts from here on; on a CPU the system has no way to begin again."""
    for device in devices:
        if device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats(device)


def usage(device: torch.device) -> dict[str, float | int | None]:
    """What all processes use of it now, under the names of a record of kind ``usage``."""
    if device.type == "cpu":
        return {}
    module = torch.get_device_module(device)
    free, whole = torch.accelerator.get_memory_info(device)
    return {
        "device_memory_bytes": whole - free,
        "device_use": _asked(lambda: module.utilization(device) / 100),
        # NVML has milliwatts, ROCm's library watts.
        "watts": _asked(lambda: module.power_draw(device) / (1 if torch.version.hip else 1000)),
    }


def _asked(value: Callable[[], float]) -> float | None:
    """A figure of the device's driver; None where its library is missing or does not know."""
    try:
        return round(value(), 3)
    except Exception:
        return None


class Arriving:
    """Values of the device on their way to the host, which goes on until it needs them."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._arrived: Any = None
        if values.device.type != "cpu":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.Event(values.device)
            self._arrived.record(torch.accelerator.current_stream(values.device))

    def tolist(self) -> list[Any]:
        """The values; waits for them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return list(self._values.tolist())


class Prefetch:
    """Tensors made on a stream of their own, by another thread, while the device computes. On a CPU just made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.Stream(device) if device.type != "cpu" else None

    def made(self, make: Callable[[], T]) -> tuple[T, Any]:
        """What ``make`` returns, and the event after which the device has it."""
        if self._stream is None:
            return make(), None
        use(self.device)
        with self._stream:
            result = make()
            done = torch.Event(self.device)
            done.record(self._stream)
        return result, done

    def ready(self, tensors: list[Tensor], done: Any) -> None:
        """The current stream waits for them, and their memory is not given to others before it is done with it."""
        if done is None:
            return
        current = torch.accelerator.current_stream(self.device)
        current.wait_event(done)
        for tensor in tensors:
            tensor.record_stream(current)
