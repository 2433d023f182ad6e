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
    """Write initial weights times 1 + rounding N(0, 1), drawn from the number."""
    layout = models.state(models.build(run.model, run.task, getattr(torch, run.recipe.dtype)))
    weights.save(_moved(initial, list(layout), number, PRECISIONS[run.recipe.dtype].rounding), layout, path)


def _moved(path: Path, names: list[str], number: int, rounding: float) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(number)
    with weights.open_weights(path) as file:
        for name in names:
            value: Tensor = file.get_tensor(name)
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
                value = (value.double() * (1 + rounding * noise)).to(value.dtype)
            yield name, value
