"""Peaks of known devices: dense FLOP/s by arithmetic, from their makers' data sheets."""

H100 = {"float64": 66.9e12, "float32": 66.9e12, "bf16": 989.4e12, "fp16": 989.4e12}
H100_NVL = {"float64": 60e12, "float32": 60e12, "bf16": 835.5e12, "fp16": 835.5e12}
A100 = {"float64": 19.5e12, "float32": 19.5e12, "bf16": 312e12, "fp16": 312e12}
PEAKS: dict[str, dict[str, float]] = {
    "H100 PCIe": {"float64": 51.2e12, "float32": 51.2e12, "bf16": 756e12, "fp16": 756e12},
    "H100 NVL": H100_NVL,
    "H200 NVL": H100_NVL,
    "H100": H100,
    "H200": H100,
    "GH200": H100,
    "A100": A100,
    "L40S": {"float32": 91.6e12, "bf16": 362e12, "fp16": 362e12},
    "V100": {"float64": 7.8e12, "float32": 15.7e12, "fp16": 125e12},
    "MI300X": {"float64": 163.4e12, "float32": 163.4e12, "bf16": 1307.4e12, "fp16": 1307.4e12},
    # One of the two dies of a module, which is what PyTorch calls a device.
    "MI250X": {"float64": 47.9e12, "float32": 47.9e12, "bf16": 191.5e12, "fp16": 191.5e12},
}
"""Part of a device's name, longer ones first: its peaks in the data sheet, without sparsity.

float64, and AMD's float32, with the matrix units, which the libraries use by themselves; NVIDIA's float32 without: TF32
is off.
"""


def peak(device: str, arithmetic: str) -> float | None:
    """Return the peak FLOP/s of the named device in a precision; None if unknown."""
    return next((peaks.get(arithmetic) for name, peaks in PEAKS.items() if name in device), None)
