"""Binding of ranks to the CPU cores next to their GPUs, by the site's list.

Their memory follows: Linux allocates it near the core that touches it first.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path


def bind(lists: list[str] | None) -> None:
    """Bind all threads of this process to the list of its GPU, as far as the job has these cores.

    A job that has other cores, as on a shared node, is left as it is, with a warning. Without lists nobody binds.
    """
    if lists is None:
        return
    number = _gpu_number(int(os.environ.get("LOCAL_RANK", 0)))
    wanted = parse(lists[number % len(lists)])
    given = _given()
    cores = wanted & given
    if not cores:
        print(
            f"warning: cpu_binding of GPU {number} is {text(wanted)}, but this job has the cores "
            f"{text(given)}; not bound.",
            file=sys.stderr,
        )
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)


def _gpu_number(local_rank: int) -> int:
    """Return the number on its node of the GPU that a rank has: Slurm names those of a step, or else of the job."""
    given = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS") or ""
    numbers = sorted(parse(given)) if given else []
    return numbers[local_rank] if local_rank < len(numbers) else local_rank


def own() -> str:
    """Return the list of the cores that this process may run on."""
    return text(_given())


def _given() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS binds nothing


def parse(cores: str) -> set[int]:
    """Return the numbers in a list as Slurm and Linux write it: 0-3,8."""
    found: set[int] = set()
    for part in cores.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def text(cores: set[int]) -> str:
    """Return the list of these numbers, the inverse of ``parse``."""
    parts: list[list[int]] = []
    for number in sorted(cores):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
