"""Releases of PyTorch that this project takes, what the older of them lack, and the driver that their CUDA needs."""

import re

from shardlab.errors import UserError
from shardlab.files import ROOT

OLDEST = "2.11"
"""Oldest release that the equality tests were run with (docs/cluster.md, "The image")."""
WHOLE_PIPELINES = "2.13"
"""Release whose pipelines hand on from a stage to the next one on the same rank, and integers. 2.11 does neither, and
2.12 was not tried.
"""
DRIVERS = {11: 450, 12: 525, 13: 580}
"""CUDA major version: oldest driver branch that runs all its minor versions (NVIDIA, "CUDA Compatibility", section
"Minor Version Compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/).
"""


def newest() -> str:
    """Return the release that envs/train.txt pins."""
    found = re.search(r"^torch==(\d+\.\d+)", (ROOT / "envs/train.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


def refusal(installed: str) -> str | None:
    """Return why a version of PyTorch is not taken, up to the remedy; None if it is."""
    if _number(OLDEST) <= _number(installed) <= _number(newest()):
        return None
    return f"PyTorch is {installed}, but this project needs {OLDEST} to {newest()}"


def require_whole_pipelines(what: str, installed: str) -> None:
    """Raise a UserError unless this version of PyTorch has what a pipeline needs for ``what``."""
    if _number(installed) < _number(WHOLE_PIPELINES):
        raise UserError(
            f"{what} needs PyTorch {WHOLE_PIPELINES} or newer, and this is {installed}; use such an image, or another "
            "strategy"
        )


def driver_needed(cuda: str | None) -> int | None:
    """Return the oldest NVIDIA driver branch that runs this CUDA version; None without CUDA, or if it is unknown.

    ``cuda``: as in ``torch.version.cuda``, such as "13.0"; None for builds for CPUs or ROCm.
    """
    major = (cuda or "").split(".")[0]
    return DRIVERS.get(int(major)) if major.isdecimal() else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
