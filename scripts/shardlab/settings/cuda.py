"""The NVIDIA driver that a CUDA version needs."""

DRIVERS = {11: 450, 12: 525, 13: 580}
"""CUDA major version: oldest driver branch that runs all its minor versions (NVIDIA, "CUDA Compatibility", section
"Minor Version Compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/).
"""


def driver_needed(cuda: str | None) -> int | None:
    """Return the oldest NVIDIA driver branch that runs this CUDA version; None without CUDA, or if it is unknown.

    ``cuda``: as in ``torch.version.cuda``, such as "13.0"; None for builds for CPUs or ROCm.
    """
    major = (cuda or "").split(".")[0]
    return DRIVERS.get(int(major)) if major.isdecimal() else None
