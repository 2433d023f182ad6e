"""Measured throughput of a device: matrix products and memory. For peaks from data sheets, see settings/devices.py."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from shardlab.runtime.device import memory, wait
from shardlab.settings.precisions import PRECISIONS

SIZE, SIZE_ON_CPU = 8192, 512
"""Rows of the square matrices: large enough that launch overhead does not matter."""
BYTES, BYTES_ON_CPU = 2**30, 2**26
"""Bytes of the tensor that is copied: much larger than any cache."""
SECONDS = 0.2
"""Duration of each measurement."""
MEASURED = ("float32", "bf16")
"""Precisions of the products."""


def figures(device: torch.device) -> dict[str, Any]:
    """Measure TFLOP/s of square matrix products (2 n^3 operations) and GB/s of a copy (each byte read and written); add
    a GPU's memory in GiB. Names are those of a site's ``hardware``. Takes about a second.
    """
    measured: dict[str, Any] = {"matrix_tflops": {}}
    on_cpu = device.type == "cpu"
    size = SIZE_ON_CPU if on_cpu else SIZE
    for kind in MEASURED:
        matrix = torch.ones(size, size, dtype=getattr(torch, PRECISIONS[kind].dtype), device=device)
        seconds = _repeated(partial(torch.mm, matrix, matrix), device)
        measured["matrix_tflops"][kind] = 2 * size**3 / seconds / 1e12
    source = torch.ones(BYTES_ON_CPU if on_cpu else BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _repeated(partial(target.copy_, source), device)
    measured["memory_gb_per_second"] = 2 * source.numel() / seconds / 1e9
    if (total := memory(device)) is not None:
        measured["device_memory_gib"] = total / 2**30
    return measured


def least(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the slowest device's values, rounded to three digits: the one that every step waits for."""
    slowest: dict[str, Any] = {}
    for key in of_ranks[0]:
        values = [each[key] for each in of_ranks]
        slowest[key] = least(values) if isinstance(values[0], dict) else float(f"{min(values):.3g}")
    return slowest


def _repeated(work: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, averaged over enough calls to fill the measurement."""
    work()
    calls = 0
    wait(device)
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < SECONDS:
        for _ in range(5):
            work()
        calls += 5
        wait(device)
    return elapsed / calls
