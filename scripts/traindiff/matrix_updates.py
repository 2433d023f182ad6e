"""Updates of Muon (https://kellerjordan.github.io/posts/muon), and those that take parts of a matrix for matrices."""

import torch
from torch import Tensor

from traindiff import patterns
from traindiff.evidence import Evidence
from traindiff.pair import Pair

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MATRICES, LARGEST = 4, 2**22
"""Most matrices that are looked at, and most values of one: each is decomposed."""
PARTS = (2, 3, 4, 8)


def look_at_shards(pair: Pair, step: int, names: list[str], found: Evidence) -> bool:
    """Note if a first update is that of parts of matrices, each orthogonalized by itself, and the reference's of whole
    ones.
    """
    gradients = [
        capture.tensors(f"step{step}/clipped") or capture.tensors(f"step{step}/gradients") for capture in pair.captures
    ]
    if step != pair.steps[0] or not all(all(name in file for name in names) for file in gradients):
        return False
    before = pair.reference.tensors(f"step{step - 1}/weights" if step else "initial")
    own, usual = pair.actual.updates(step), pair.reference.updates(step)
    sizes = {name: gradients[0][name].numel() for name in names if gradients[0][name].dim() == 2}
    chosen = sorted((name for name in sizes if sizes[name] <= LARGEST), key=sizes.__getitem__)[-MATRICES:]
    if not chosen or not all(
        _explains(usual(name), orthogonal(gradients[1][name]), before[name], pair.fits) for name in chosen
    ):
        return False
    for parts in PARTS:
        for dim in (0, 1):
            if all(
                _explains(own(name), _in_parts(gradients[0][name], parts, dim), before[name], pair.fits)
                for name in chosen
            ):
                found.note("pattern", "shards of matrices")
                found.say(
                    f"The update orthogonalizes each of {parts} parts of a matrix along dimension {dim} by itself, the "
                    "reference's whole ones."
                )
                return True
    return False


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the matrix with its singular values as Muon's iteration leaves them."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / (values.norm() or 1.0)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        values = a * values + b * values**3 + c * values**5
    return (left * values) @ right


def _in_parts(matrix: Tensor, parts: int, dim: int) -> Tensor:
    return torch.cat([orthogonal(part) for part in matrix.chunk(parts, dim)], dim)


def _explains(update: Tensor, direction: Tensor, weights: Tensor, fits: float) -> bool:
    """Return whether an update is a multiple of a direction, and decay."""
    terms = [lambda _: direction, lambda _: weights.double()]
    return patterns.combination([""], lambda _: update, terms).residual < fits
