"""Data parallelism in one process: ``torch.nn.DataParallel`` copies the model to every device in every step."""

import logging

import torch
from torch import nn

log = logging.getLogger(__name__)


def apply(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    """Wrap a model that is on the first device. All CPUs are one device, on which the model runs unchanged."""
    log.info("Applied DataParallel over %s", ", ".join(map(str, devices)))
    if devices[0].type == "cpu":
        return model  # DataParallel would take the GPUs of this machine, if it has some
    return nn.DataParallel(model, device_ids=devices)
