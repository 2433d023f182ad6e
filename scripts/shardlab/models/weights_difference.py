"""How far two files of weights are apart, tensor by tensor."""

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from shardlab.errors import UserError
from shardlab.models.weights import open_weights

BLOCK = 2**20
"""Values that are converted to the widest type of their kind at a time."""


def weights_difference(path: Path, reference: Path) -> dict[str, float]:
    """Return ``||w - r|| / ||r||`` of each tensor in two files of weights; ``||w - r||`` where r is 0.

    One tensor of each file is in memory at a time. Equal values have difference 0, also those that are not finite; a
    value that is finite in one file alone gives the largest float, as JSON has no infinity.

    Raises:
        UserError: a file is missing or damaged, or they are not of the same model.
    """
    differences = {}
    with open_weights(path) as file, open_weights(reference) as other:
        if odd := set(file.keys()) ^ set(other.keys()):
            raise UserError(f"{path} and {reference} are not of the same model: only one of them has {min(odd)}.")
        for name in sorted(file.keys()):
            pair = file.get_tensor(name), other.get_tensor(name)
            kinds = [f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}" for value in pair]
            if kinds[0] != kinds[1]:
                raise UserError(
                    f"{path} and {reference} are not of the same model: {name} is {kinds[0]} in the first and "
                    f"{kinds[1]} in the second."
                )
            differences[name] = _difference(*pair)
    return differences


def fixed_weights(path: Path, initial: Path) -> list[str]:
    """Return the tensors of a training that have to be equal in any other: those that are not floating point, and those
    that still have their initial values.

    Raises:
        UserError: a file is missing or damaged.
    """
    fixed = []
    with open_weights(path) as file, open_weights(initial) as before:
        for name in sorted(file.keys()):
            value = file.get_tensor(name)
            if not (value.is_floating_point() or value.is_complex()) or value.equal(before.get_tensor(name)):
                fixed.append(name)
    return fixed


def count_rounded(path: Path, reference: Path, initial: Path, low: torch.dtype) -> dict[str, int]:
    """Count the values that ``low`` represents exactly, in a training's weights and in those of the reference.

    Only values of a wider type that the training changed, and that did not begin at 0: a first update may have as few
    digits as a gradient in ``low``.

    Raises:
        UserError: a file is missing or damaged.
    """
    changed = rounded = rounded_reference = 0
    with open_weights(path) as file, open_weights(reference) as other, open_weights(initial) as before:
        for name in file.keys():  # noqa: SIM118 (no dictionary)
            tensors = [each.get_tensor(name) for each in (file, other, before)]
            dtype = tensors[0].dtype
            if not dtype.is_floating_point or torch.finfo(dtype).bits <= torch.finfo(low).bits:
                continue
            for own, theirs, first in zip(*(each.flatten().split(BLOCK) for each in tensors), strict=True):
                counted = (own != first) & (first != 0) & own.isfinite()
                changed += int(counted.sum())
                rounded += int((counted & (own == own.to(low))).sum())
                rounded_reference += int((counted & (theirs == theirs.to(low))).sum())
    return {"changed": changed, "rounded": rounded, "rounded_in_single": rounded_reference}


def _difference(value: Tensor, reference: Tensor) -> float:
    if value.equal(reference):
        return 0.0
    widest = torch.int64
    if value.is_floating_point() or value.is_complex():
        widest = torch.promote_types(value.dtype, torch.float64)
    difference = size = 0.0
    for blocks in zip(value.flatten().split(BLOCK), reference.flatten().split(BLOCK), strict=True):
        own, other = (block.to(widest) for block in blocks)
        squares = _square(own - other), _square(other)
        if not all(map(math.isfinite, squares)):
            same = (own == other) | (own.isnan() & other.isnan())
            squares = _square((own - other).masked_fill(same, 0)), _square(other.masked_fill(~other.isfinite(), 0))
        difference, size = difference + squares[0], size + squares[1]
    relative = math.sqrt(difference) / (math.sqrt(size) or 1.0)
    return relative if math.isfinite(relative) else sys.float_info.max


def _square(values: Tensor) -> float:
    numbers = (torch.view_as_real(values).flatten() if values.is_complex() else values).double()
    return float(numbers.dot(numbers))
