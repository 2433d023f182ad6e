"""How tensors differ from those that they should equal: a factor, a sum of other parts, other rows, nothing that fits.

All fits are least squares over the affected tensors; what is left after one, relative to what is explained, tells
whether it holds. What is added to the reference must explain the difference from it: the tensor itself is mostly
explained by the reference, whatever is added.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

Read = Callable[[str], Tensor]
SAMPLE = 200_000
"""Values of all tensors that a fit of several unknowns looks at, evenly spread."""

ROUNDINGS = 2
"""Most roundings, relative to the whole tensor, by which one in lower precision is apart."""


@dataclass(frozen=True)
class Fit:
    """Coefficients of a fit, and what they leave unexplained relative to the fitted values."""

    coefficients: list[float]
    residual: float

    @property
    def left(self) -> float:
        """What a single factor leaves of the difference, not of the tensor."""
        times = self.coefficients[0]
        explained = (1 - 1 / times) * max(0.0, 1 - self.residual**2) ** 0.5 if times else 1.0
        return self.residual / (math.hypot(explained, self.residual) or 1.0)

    def is_factor(self, limit: float) -> bool:
        """Return whether a single factor explains the difference: near 1 it explains the tensor in any case."""
        return self.residual < limit * min(1.0, abs(self.coefficients[0] - 1))


def factor(actual: Tensor, expected: Tensor) -> Fit:
    """Return the factor by which a tensor is the other one."""
    value, other = actual.double().flatten(), expected.double().flatten()
    square = float(other @ other)
    if not square:
        return Fit([float("nan")], float("inf"))
    times = float(value @ other) / square
    return Fit([times], float((value - times * other).norm()) / (float(value.norm()) or square**0.5))


def multiple(names: Iterable[str], off: Read, term: Read, noise: Callable[[str], float] = lambda name: 0.0) -> Fit:
    """Return by how much of ``term`` tensors differ, the same for all of them; ``residual``: the largest of a tensor.

    ``noise``: norm of a tensor's rounding. Tensors whose difference is not ten times that do not count.
    """
    names = [name for name in names if float(off(name).norm()) > 10 * noise(name)]
    pairs = [(off(name).double().flatten(), term(name).double().flatten()) for name in names]
    square = sum(float(other @ other) for _, other in pairs)
    if not square or not math.isfinite(square):
        return Fit([float("nan")], float("inf"))
    times = sum(float(value @ other) for value, other in pairs) / square
    return Fit([times], max(float((value - times * other).norm() / value.norm()) for value, other in pairs))


def rounded_to(value: Tensor, expected: Tensor) -> str | None:
    """Return the dtype of lower precision in which a tensor is the other one, or a sum of its rounded parts: it alone
    has only values of that dtype, and is as near as that.
    """
    if not value.is_floating_point():
        return None
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        limits = torch.finfo(dtype)
        has_only_these = limits.bits < torch.finfo(value.dtype).bits and torch.equal(value.to(dtype).to(value), value)
        if has_only_these and not torch.equal(expected.to(dtype).to(expected), expected):
            off = float((value.double() - expected.double()).norm())
            if off <= ROUNDINGS * limits.eps * float(expected.double().norm()):
                return str(dtype).removeprefix("torch.")
    return None


def combination(names: Iterable[str], actual: Read, terms: list[Read]) -> Fit:
    """Return the coefficients with which the sum of ``terms`` is ``actual``, the same for all these tensors."""
    names = [*names]
    if not names:
        return Fit([float("nan")] * len(terms), float("inf"))
    every = max(1, sum(actual(name).numel() for name in names) // SAMPLE)
    value = _column(names, actual, every)
    matrix = torch.stack([_column(names, term, every) for term in terms], 1)
    if not bool(torch.isfinite(value).all() and torch.isfinite(matrix).all()):
        return Fit([float("nan")] * len(terms), float("inf"))
    scale = matrix.norm(dim=0).clamp(min=1e-300)
    solution = torch.linalg.lstsq(matrix / scale, value[:, None], driver="gelsd").solution[:, 0]
    residual = float((value - matrix / scale @ solution).norm()) / (float(value.norm()) or 1.0)
    return Fit((solution / scale).tolist(), residual)


def _column(names: list[str], read: Read, every: int) -> Tensor:
    return torch.cat([read(name).double().flatten()[::every] for name in names])


def spans(actual: Tensor, expected: Tensor, limit: float) -> list[tuple[int, list[int]]]:
    """Return (dimension, indices that differ) of each dimension along which not all indices do."""
    wrong = ~((actual.double() - expected.double()).abs() <= limit)
    found = []
    for dim in range(wrong.dim()):
        at = wrong.movedim(dim, 0).flatten(1).any(1) if wrong.dim() > 1 else wrong
        if not bool(at.all()):
            found.append((dim, at.nonzero().flatten().tolist()))
    return found


def is_permuted(actual: Tensor, expected: Tensor, limit: float) -> bool:
    """Return whether the rows of a tensor are those of the other one in another order."""
    if actual.shape != expected.shape or actual.dim() < 2:
        return False
    size = actual.shape[-1]
    # Along a random direction: rows that are normalized have the same length.
    direction = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, others = ((value.double().flatten(0, -2) @ direction).sort().values for value in (actual, expected))
    return bool((rows - others).abs().max() <= limit * size**0.5)


def is_same_number(value: float, other: float) -> bool:
    """Return whether two numbers are the same infinity, both not a number, or equal."""
    return value == other or (value != value and other != other)


def not_finite(names: Iterable[str], actual: Read, expected: Read) -> str:
    """Return a sentence on the first tensor that is not finite, and in which of the two."""
    for name in names:
        value, other = (read(name) for read in (actual, expected))
        counts = [int((~torch.isfinite(each)).sum()) for each in (value, other)]
        if any(counts):
            where = "both" if all(counts) else "the reference" if counts[1] else "this training"
            kind = "not a number" if bool(torch.isnan(value).any() or torch.isnan(other).any()) else "infinite"
            return f"{name} has values that are {kind}: {max(counts)} of {value.numel()}, in {where}."
    return "It has values that are too large."


def ranges(indices: Iterable[int]) -> str:
    """Return indices as text: 0-3, 7, 9-12."""
    text: list[str] = []
    first = last = None
    for index in [*sorted(indices), None]:
        if first is not None and last is not None and (index is None or index != last + 1):
            text.append(str(first) if first == last else f"{first}-{last}")
            first = None
        first = index if first is None else first
        last = index
    return ", ".join(text) if len(text) <= 8 else ", ".join(text[:8]) + f" and {len(text) - 8} more"
