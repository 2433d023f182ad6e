"""Models: one file each, a plain single-device ``nn.Module`` called ``Model``; none knows of ranks."""

from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardlab.errors import UserError, unknown


def build(name: str, args: dict[str, Any], dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """The model ``scripts/shardlab/models/<name>.py``, with weights drawn in float32, or on "meta" without any.

    Raises:
        UserError: no such file, or arguments that it does not take.
    """
    known = [path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")]
    if name not in known:
        raise unknown("model", name, known, "scripts/shardlab/models")
    try:
        with torch.device(device):
            model: nn.Module = import_module(f"shardlab.models.{name}").Model(**args)
    except (TypeError, ValueError) as error:
        raise UserError(f"model {name} cannot be built with {args}: {error}.") from error
    return model.to(dtype)


def parameter_count(model: nn.Module) -> int:
    """Number of trainable values, over the whole model."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def matching(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Submodules whose name matches; ``layers.*`` means the children of ``layers``, not everything below them."""
    return [
        module
        for name, module in model.named_modules()
        if name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
    ]
