"""Two captures that are compared, the rows and stages of a comparison, and up to which distance tensors are equal."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from traindiff.capture_files import Capture, InputError

FLOORS = {"F64": 1e-4, "F32": 1e-3, "F16": 1e-3, "BF16": 8e-3}
"""A tensor is compared relative to its largest value, or to this part of the largest of its kind: below it, a sum that
should be 0 is rounding (the gradient of a key's bias in attention, for example).
"""
LIMITS = {"F64": 1e-9, "F32": 1e-3, "F16": 5e-2, "BF16": 5e-2}
"""Relative difference up to which tensors of a dtype are equal, unless the twins of `single` are farther apart."""
SCALARS = {"F64": 1e-9, "F32": 1e-5, "F16": 1e-2, "BF16": 1e-2}
EPSILONS = {"F64": 2.2e-16, "F32": 1.2e-7, "F16": 9.8e-4, "BF16": 7.8e-3}
COARSE = {"F16", "BF16"}
MULTIPLE = 10.0
"""Largest distance as a multiple of that of the twin."""
UPDATES = 1e-5
"""The same of updates: AdamW makes a whole update of the sign of a gradient that is nothing but rounding."""
FILES = {
    "gradient": "gradients",
    "clipped gradient": "clipped",
    "optimizer state": "optimizer",
    "weights": "weights",
}
"""Stage: the file of a step that is compared."""
NUMBERS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass
class Where:
    """Where a module's outputs differ: for each sample, position and rank that was compared."""

    places: dict[str, dict[int, bool]] = field(default_factory=dict)
    values: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """(actual, reference) of each rank and micro-batch."""


@dataclass(frozen=True)
class Row:
    """One tensor or number of a stage."""

    name: str
    """Of a parameter, ``<parameter>//<key>`` of an optimizer's tensor, or ``<module>/<index>`` of an output."""
    difference: float
    """Largest difference relative to the reference's largest value; nan where one of them is not a number."""
    limit: float
    """Up to which it is rounding."""
    note: str = ""
    """The difference in words, where it is not a number."""
    where: Where | None = None
    """Of an output."""

    @property
    def share(self) -> float:
        """How much of its limit it takes; infinity for what is not a number."""
        return self.difference / self.limit if self.difference == self.difference else math.inf

    @property
    def differs(self) -> bool:
        """True if it is more than rounding."""
        return not self.difference <= self.limit


@dataclass(frozen=True)
class Stage:
    """All rows of one stage of one step; step -1: after the last."""

    step: int
    kind: str
    rows: list[Row] = field(default_factory=list)

    @property
    def wrong(self) -> list[Row]:
        """Rows that differ, in the order in which they are computed."""
        return [row for row in self.rows if row.differs]

    @property
    def worst(self) -> Row | None:
        """The row that is farthest apart relative to its limit."""
        return max(self.rows, key=lambda row: row.share, default=None)


@dataclass(frozen=True)
class Pair:
    """A capture and its reference; ``twin``: the reference again from weights moved by one rounding."""

    actual: Capture
    reference: Capture
    twin: Capture | None = None

    @property
    def steps(self) -> list[int]:
        """Steps that both have.

        Raises:
            InputError: there are none.
        """
        steps, others = self.actual.steps, self.reference.steps
        if not steps and not others:
            return [0]  # both have only weights before the first step
        found = [step for step in others if step in steps]
        if not found:
            raise InputError(
                f"{self.actual.folder} and {self.reference.folder} have no step in common: {_listed(steps)} and "
                f"{_listed(others)}; both must number their steps alike."
            )
        return found

    def sample(self, name: object) -> object:
        """Return what names a sample in both: of a hash, with prepared data of the reference, its row."""
        return self.reference.about.get("hashes", {}).get(name, name)

    def limit(self, dtypes: dict[str, float], *names: str) -> float:
        """Return the limit of the coarsest dtype of both captures, and of both's files of these names."""
        files = (capture.tensors(name).dtypes for capture in self.captures for name in names)
        return _coarsest(dtypes, self._arithmetic(dtypes).union(*files))

    def limits(self, dtypes: dict[str, float], file: str) -> Callable[[str], float]:
        """Return a function from the name of a tensor to its limit, for a file that both have."""
        files = [capture.tensors(file) for capture in self.captures]
        return lambda name: _coarsest(
            dtypes, self._arithmetic(dtypes) | {each.dtype(name) for each in files if name in each}
        )

    def _arithmetic(self, dtypes: dict[str, float]) -> set[str]:
        """Return dtypes in which both were trained, if they are known; weights are kept as their files have them."""
        keys = ("dtype",) if dtypes is EPSILONS else ("dtype", "computed")
        return {NUMBERS[capture.about[key]] for capture in self.captures for key in keys if key in capture.about}

    @property
    def captures(self) -> tuple[Capture, Capture]:
        return self.actual, self.reference

    def gradients(self, capture: Capture, file: str) -> Callable[[str], Tensor]:
        """Return what reads a file of gradients: 0 for a parameter that has one only in the other training."""
        own = capture.tensors(file)
        if capture is self.twin or not file.endswith(("gradients", "clipped")):
            return own.__getitem__
        others = (self.reference if capture is self.actual else self.actual).tensors(file)
        return lambda name: own[name] if name in own or name not in others else torch.zeros_like(others[name])


def largest(value: Tensor) -> float:
    """Return the largest absolute value; nan if one is, 0 of no values."""
    return float(value.abs().max()) if value.numel() else 0.0


def _coarsest(dtypes: dict[str, float], found: set[str]) -> float:
    return max((dtypes[dtype] for dtype in found & dtypes.keys()), default=dtypes["F32"])


def _listed(steps: list[int]) -> str:
    return f"steps {', '.join(map(str, steps))}" if steps else "none"
