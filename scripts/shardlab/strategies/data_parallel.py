"""Data parallel in one process: ``torch.nn.DataParallel`` copies the model to every device at every step."""

import torch
from torch import nn


def apply(model: nn.Module, device: torch.device, devices: int) -> nn.Module:
    """Wrap a model that lies on the first device. CPUs are one device: there it runs as if alone."""
    return nn.DataParallel(model, device_ids=list(range(devices)) if device.type == "cuda" else None)
