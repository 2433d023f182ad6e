"""Initial weights moved by about one rounding: the beginning of a twin."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from shardlab import models
from shardlab.models import weights
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run


def move(run: Run, initial: Path, number: int, path: Path) -> None:
    """Write initial weights times 1 + rounding N(0, 1), drawn from the number.

    The rounding is that of the layers' arithmetic, or of a tensor that is more precise than the weights.
    """
    layout = models.state(models.build(run.model, run.task, getattr(torch, run.recipe.dtype)))
    weights.save(_moved(run, initial, layout, number), layout, path)


def _moved(run: Run, path: Path, layout: dict[str, Tensor], number: int) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(number)
    weights_dtype = getattr(torch, run.recipe.dtype)
    with weights.open_weights(path) as file:
        for name in layout:
            value = file.get_tensor(name)
            if value.is_floating_point() or value.is_complex():
                precise = torch.finfo(value.dtype).eps < torch.finfo(weights_dtype).eps
                rounding = torch.finfo(value.dtype).eps / 2 if precise else PRECISIONS[run.recipe.arithmetic].rounding
                noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                wide = torch.complex128 if value.is_complex() else torch.float64
                value = (value.to(wide) * (1 + rounding * noise)).to(value.dtype)
            yield name, value
