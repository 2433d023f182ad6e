"""When a formula holds: what it leaves of the difference between two trainings is rounding, on every tensor."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from traindiff.capture_files import InputError
from traindiff.pair import EPSILONS, FILES, FLOORS, MULTIPLE, Pair, Stage

Read = Callable[[str], Tensor]
ROUNDING = {"F64": 1e-9, "F32": 1e-4, "F16": 2e-2, "BF16": 4e-2}
"""Part of a tensor's norm that a formula may leave: rounding of its dtype, through the layers of a model."""
PART = {"F64": 1e-3, "F32": 2e-2, "F16": 1e-1, "BF16": 1e-1}
"""Part of the difference from the reference that it may leave, over all tensors: a formula explains the difference."""
NEAR = {"F64": 1e-6, "F32": 1e-4, "F16": 1e-2, "BF16": 1e-2}
"""How near two fitted numbers are that are the same, relative to them."""
SAMPLE = 200_000
"""Values of all tensors from which unknowns are solved, evenly spread; what they leave is taken of all values."""


@dataclass(frozen=True)
class Fit:
    """A formula that holds: its solved unknowns, and the part of the difference that it leaves (nan: of no tensors)."""

    solved: list[float] = field(default_factory=list)
    left: float = math.nan


def least_squares(terms: Tensor, value: Tensor, rcond: float | None = None) -> Tensor | None:
    """Return the coefficients with which columns of ``terms`` add up to a vector; None if they are not independent.

    ``rcond``: see torch.linalg.lstsq.
    """
    scale = terms.norm(dim=0)
    if not bool((scale > 0).all()):
        return None
    found = torch.linalg.lstsq(terms / scale, value[:, None], rcond=rcond, driver="gelsd")
    return None if int(found.rank) < terms.shape[1] else found.solution[:, 0] / scale


@dataclass
class View:
    """The tensors of a stage that differs, which formulas recompute from the reference's."""

    pair: Pair
    stage: Stage

    @cached_property
    def names(self) -> list[str]:
        """Those that differ, without updates that are made of nothing but rounding."""
        wrong = [row.name for row in self.stage.wrong]
        sure = [name for name in wrong if self.stage.kind != "update" or name not in self._rounding]
        return sure or wrong

    @property
    def is_whole(self) -> bool:
        """Whether all tensors differ, but for those that are 0 or rounding."""
        return {row.name for row in self.stage.rows} <= {*self.names, *self._rounding}

    @cached_property
    def _rounding(self) -> set[str]:
        """Tensors that are 0 or rounding, or whose gradients are (those of a key's bias in attention, say)."""
        of_updates = self.stage.kind in ("update", "optimizer state")
        read = self.gradients if of_updates else self.expected
        sizes = {}
        for row in self.stage.rows if read else ():
            with suppress(InputError):  # a parameter without gradient
                sizes[row.name] = float(read(row.name).norm()) if read and not row.note else math.inf
        largest = max(filter(math.isfinite, sizes.values()), default=0.0)
        return {name for name, size in sizes.items() if size <= self.limit(FLOORS) * largest}

    @property
    def step(self) -> int:
        return self.stage.step

    @cached_property
    def file(self) -> str:
        """The file of the tensors."""
        if self.stage.kind == "initial weights":
            return "initial"
        kind = FILES.get(self.stage.kind, "weights")
        return f"step{self.step}/{kind}"

    def actual(self, name: str) -> Tensor:
        return self._read(0, name)

    def expected(self, name: str) -> Tensor:
        return self._read(1, name)

    def off(self, name: str) -> Tensor:
        return self.actual(name) - self.expected(name)

    def before(self, name: str) -> Tensor:
        """Return a weight of the reference before the step, by the name of a parameter or of its state."""
        return self.pair.reference.before(self.step)[name.split("//")[0]].double()

    @cached_property
    def gradients(self) -> Read | None:
        """The reference's gradients as its optimizer gets them, or None if they are unknown."""
        clipped, file = (self.pair.reference.tensors(f"step{self.step}/{kind}") for kind in ("clipped", "gradients"))
        limit = self.pair.reference.shown(self.step).get("max_grad_norm") or math.inf
        times = 1.0
        if not clipped and math.isfinite(limit):  # an engine clips inside, as PyTorch does
            times = min(1.0, limit / (math.hypot(*(float(file[name].double().norm()) for name in file.names)) + 1e-6))
        file = clipped or file
        return (lambda name: times * file[name.split("//")[0]].double()) if file else None

    def limit(self, limits: dict[str, float]) -> float:
        return self.pair.limit(limits, self.file)

    @cached_property
    def near(self) -> float:
        return self.limit(NEAR)

    def same(self, value: float, other: float, times: float = 1.0) -> bool:
        """Return whether two fitted numbers are the same."""
        return abs(value - other) <= times * self.near * max(abs(value), abs(other)) < math.inf

    def solve(self, names: Sequence[str], terms: Sequence[Read], of: Read | None = None) -> Fit | None:
        """Solve for the coefficients with which ``terms`` add up to the difference (or to ``of``), the same for all
        these tensors; None if that does not hold: there are no more values than unknowns, the terms are not
        independent, or more than rounding is left, of a tensor or of the difference.
        """
        target = of or self.off
        try:
            sizes = [target(name).numel() for name in names]
            every = max(1, sum(sizes) // SAMPLE)
            value = torch.cat([target(name).flatten()[::every] for name in names]) if names else torch.zeros(0)
            matrix = torch.stack([torch.cat([t(name).double().flatten()[::every] for name in names]) for t in terms], 1)
        except (RuntimeError, InputError):
            return None  # shapes that do not belong together, or a term that is unknown
        if (
            matrix.shape[0] != len(value)
            or len(value) <= len(terms)
            or not bool(torch.isfinite(value).all() and torch.isfinite(matrix).all())
        ):
            return None
        solution = least_squares(matrix, value)
        if solution is None:
            return None
        found = solution.tolist()

        rest, whole, differs = 0.0, 0.0, False
        for name in names:
            left = float(
                (target(name) - sum(a * term(name).double() for a, term in zip(found, terms, strict=True))).norm()
            )
            off, rounding = float(self.off(name).norm()), self.rounding(name)
            if not left <= rounding:
                return None
            differs |= name in self.names or not off <= rounding
            rest, whole = math.hypot(rest, left), math.hypot(whole, off)
        part = rest / whole if differs and whole else 0.0  # of tensors that do not differ, only rounding may be left
        return Fit(found, part) if part <= self.limit(PART) else None

    @cached_property
    def _largest(self) -> float:
        return max((float(self.expected(row.name).norm()) for row in self.stage.rows if not row.note), default=0.0)

    def rounding(self, name: str) -> float:
        """Return the norm up to which what a formula leaves of a tensor is rounding."""
        actual, expected = self.actual(name), self.expected(name)
        size = max(float(actual.norm()), float(expected.norm()), self.limit(FLOORS) * self._largest)
        found = self.pair.limits(ROUNDING, self.file)(name) * size
        if self.stage.kind == "update":  # the difference of weights, which are larger
            found += self.pair.limits(EPSILONS, self.file)(name) * float(self.before(name).norm())
        if self.pair.twin:
            of_twin = MULTIPLE * float((self._read(2, name) - expected).norm())
            found += of_twin if math.isfinite(of_twin) else 0.0
        return found

    def _read(self, side: int, name: str) -> Tensor:
        capture = (*self.pair.captures, self.pair.twin)[side]
        assert capture is not None
        if self.stage.kind == "update":
            return capture.updates(self.step)(name).double()
        return self.pair.gradients(capture, self.file)(name).double()


def number(value: float, near: float = NEAR["F64"]) -> str:
    """Return a fitted number as text; ``near``: how exact it is."""
    short = f"{value:.{2 if near >= NEAR['F16'] else 6}g}"
    if short == "1" and abs(value - 1) > near / 1000:
        return f"1 {'-' if value < 1 else '+'} {abs(value - 1):.1g}"
    return "0" if abs(value) < 1e-12 else short


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first names as text, and how many more there are."""
    names = [*names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def ranges(indices: Iterable[int]) -> str:
    """Return indices as text: 0-3, 7, 9-12."""
    runs = groupby(enumerate(sorted(indices)), key=lambda each: each[1] - each[0])
    ends = [[index for _, index in run] for _, run in runs]
    return listed((f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends), 8)
