"""Data parallel in one process: ``torch.nn.DataParallel`` copies the model to every device at every step."""

import torch
from torch import nn


def apply(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    """Wrap a model that lies on the first device. CPUs are one device: there it runs as if alone."""
    return nn.DataParallel(model, device_ids=devices if devices[0].type != "cpu" else None)
