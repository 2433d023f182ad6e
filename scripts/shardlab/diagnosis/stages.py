"""The stages of a step in the order in which they are computed, and how far two captures are apart in each."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shardlab.diagnosis import outputs
from shardlab.diagnosis.capture_files import Capture, Tensors
from shardlab.errors import UserError

FLOOR = 1e-4
"""A tensor is compared relative to its largest value, or to this part of the largest of its kind."""
LIMITS = {"F64": 1e-9, "F32": 1e-3, "F16": 5e-2, "BF16": 5e-2}
"""Relative difference up to which tensors of a dtype are equal, unless the twins of `single` are farther apart."""
SCALARS = {"F64": 1e-9, "F32": 1e-5, "F16": 1e-2, "BF16": 1e-2}
MULTIPLE = 10.0
"""Largest distance as a multiple of that of the twin."""
UPDATES = 1e-5
"""The same of updates: AdamW makes a whole update of the sign of a gradient that is nothing but rounding."""
NUMBERS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Row:
    """One tensor or number of a stage."""

    name: str
    apart: float
    """Largest difference relative to the reference's largest value; nan where one of them is not a number."""
    limit: float
    """Up to which it is rounding."""
    note: str = ""
    """What differs, if it is not a number."""
    where: Any = None
    """Where an output differs (see outputs.Where)."""

    @property
    def differs(self) -> bool:
        """True if it is more than rounding."""
        return not self.apart <= self.limit


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
        return max(self.rows, key=lambda row: row.apart / row.limit if row.apart == row.apart else 1e300, default=None)


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
            UserError: there are none.
        """
        found = [step for step in self.reference.steps if step in self.actual.steps]
        if not found:
            raise UserError(f"{self.actual.folder} and {self.reference.folder} have no step in common.")
        return found

    def limit(self, dtypes: dict[str, float]) -> float:
        """Return the limit of the coarser of the two captures' dtypes."""
        names = [capture.about.get("dtype", "float32") for capture in (self.actual, self.reference)]
        return max(dtypes[NUMBERS[name]] for name in names)


def stages(pair: Pair) -> Iterator[Stage]:
    """Yield the stages of all steps that both captures have."""
    for step in pair.steps:
        for kind, rows in STAGES.items():
            if step == pair.steps[0] or kind != "initial weights":
                yield Stage(step, kind, [*rows(pair, step)])
    yield Stage(-1, "restored checkpoint", [*_restored(pair)])
    yield Stage(-1, "evaluation", [*_numbers(pair, -1, "evaluated")])


def compare(
    names: Iterable[str], pair: Pair, read: Callable[[Capture], Callable[[str], Tensor]], limit: float = 0.0
) -> Iterator[Row]:
    """Yield a row per name of tensors that ``read`` returns of each capture; ``limit``: see ``Row``, at least."""
    names = [*names]
    actual, reference = read(pair.actual), read(pair.reference)
    twin = read(pair.twin) if pair.twin else None
    apart: dict[str, tuple[float, float, float]] = {}
    for name in names:
        value, expected = actual(name).double(), reference(name).double()
        if value.shape != expected.shape:
            raise UserError(
                f"{name} is {tuple(value.shape)} in {pair.actual.folder} and {tuple(expected.shape)} in "
                f"{pair.reference.folder}; merge its shards (--merge), or compare trainings of the same model."
            )
        of_twin = float(_largest(twin(name).double() - expected)) if twin else 0.0
        apart[name] = float(_largest(value - expected)), float(_largest(expected)), of_twin
    scale = max((size for _, size, _ in apart.values()), default=0.0)
    for name, (away, size, of_twin) in apart.items():
        unit = max(size, FLOOR * scale) or 1.0
        yield Row(name, away / unit, max(limit, pair.limit(LIMITS), MULTIPLE * of_twin / unit))


def _largest(value: Tensor) -> Tensor:
    return value.abs().max() if value.numel() else torch.zeros(())


def _numbers(pair: Pair, step: int, *keys: str) -> Iterator[Row]:
    """Compare numbers of a step, or of a dictionary of what comes after the last."""
    found = []
    for capture in (pair.actual, pair.reference, pair.twin or pair.reference):
        about = capture.about if step < 0 else dict(enumerate(capture.about.get("steps", []))).get(step, {})
        values = {key: about.get(key) for key in keys}
        found.append(values.get("evaluated") or {} if step < 0 else values)
    for key, value in found[0].items():
        expected, twin = found[1].get(key), found[2].get(key)
        if isinstance(value, int | float) and isinstance(expected, int | float):
            unit = abs(expected) or 1.0
            limit = max(pair.limit(SCALARS), MULTIPLE * abs((twin or expected) - expected) / unit)
            yield Row(key, abs(value - expected) / unit, limit, f"{value:.10g}, not {expected:.10g}")


def _schedule(pair: Pair, step: int) -> Iterator[Row]:
    counts = [capture.about.get("steps_in_all") for capture in (pair.actual, pair.reference)]
    if step == 0 and None not in counts:
        yield Row("steps", float(counts[0] != counts[1]), 0.5, f"{counts[0]}, not {counts[1]}")
    yield from _numbers(pair, step, "samples", "targets", "learning_rate")


def _batch(pair: Pair, step: int) -> Iterator[Row]:
    ranks, reference = pair.actual.ranks(step), pair.reference.ranks(step)
    if not ranks or not reference:
        return
    read = {rank.about["data_rank"]: rank for rank in ranks}
    found, expected = (
        Counter(
            sample for rank in group for micro in range(len(rank.notes["indices"])) for sample in rank.samples(micro)
        )
        for group in (read.values(), reference)
    )
    note = "; ".join(
        f"{what} {', '.join(map(str, [*samples][:8]))}"
        for what, samples in (("missing", expected - found), ("read twice or not of this step", found - expected))
        if samples
    )
    yield Row("samples", float(found != expected), 0.5, note)
    yield from outputs.rows(pair, step, ("batch", "input"))


def _tensors(kind: str) -> Callable[[Pair, int], Iterator[Row]]:
    def rows(pair: Pair, step: int) -> Iterator[Row]:
        name = f"step{step}/{kind}"
        pairs = [capture.tensors(name) for capture in (pair.actual, pair.reference)]
        if all(pairs):
            missing = [each for each in pairs[1].names if each not in pairs[0]]
            missing = missing or [each for each in pairs[0].names if each not in pairs[1]]
            if missing and kind == "optimizer":
                yield Row(missing[0], float("inf"), 1.0, "missing in one of them")
            elif missing:
                raise UserError(
                    f"{missing[0]} is in only one of {pair.actual.folder} and {pair.reference.folder}; map names with "
                    "--rename PATTERN=NAME."
                )
            names = [each for each in pairs[1].names if each in pairs[0]]
            yield from compare(names, pair, lambda capture: capture.tensors(name).__getitem__)

    return rows


def updates(capture: Capture, step: int) -> Callable[[str], Tensor]:
    """Return what a step added to a weight, by the weight's name."""
    after = capture.tensors(f"step{step}/weights")
    before = capture.tensors(f"step{step - 1}/weights" if step else "initial")
    return lambda name: after[name].double() - before[name].double()


def _update(pair: Pair, step: int) -> Iterator[Row]:
    parameters = _parameters(pair, step)
    if all(_has_update(capture, step) for capture in (pair.actual, pair.reference)):
        yield from compare(parameters, pair, lambda capture: updates(capture, step), UPDATES)


def _buffers(pair: Pair, step: int) -> Iterator[Row]:
    after = [capture.tensors(f"step{step}/weights") for capture in (pair.actual, pair.reference)]
    if all(after) and "parameters" in pair.reference.about:
        parameters = {*pair.reference.about["parameters"]}
        names = [name for name in after[1].names if name not in parameters]
        yield from compare(names, pair, lambda capture: capture.tensors(f"step{step}/weights").__getitem__)


def _parameters(pair: Pair, step: int) -> list[str]:
    known: list[str] = pair.reference.about.get("parameters") or pair.reference.tensors(f"step{step}/weights").names
    return known


def _has_update(capture: Capture, step: int) -> bool:
    before = capture.tensors(f"step{step - 1}/weights" if step else "initial")
    return bool(before) and bool(capture.tensors(f"step{step}/weights"))


def _initial(pair: Pair, step: int) -> Iterator[Row]:
    files = [capture.tensors("initial") for capture in (pair.actual, pair.reference)]
    if all(files):
        yield from compare(
            files[1].names, Pair(pair.actual, pair.reference), lambda c: c.tensors("initial").__getitem__
        )


def _load(pair: Pair, step: int) -> Iterator[Row]:
    found = [
        capture.about.get("steps", [{}] * (step + 1))[step].get("expert_load")
        for capture in (pair.actual, pair.reference)
    ]
    if all(found):
        away = torch.tensor(found[0]) - torch.tensor(found[1])
        yield Row("expert_load", float(_largest(away)), 0.5, f"{found[0]}, not {found[1]}")


def _restored(pair: Pair) -> Iterator[Row]:
    """Compare a restored engine with the one that wrote the checkpoint: within the capture."""
    capture = pair.actual
    if not capture.tensors("restored/weights"):
        return
    last = capture.steps[-1]
    yield Row(
        "step", float(capture.about["resumed_at"] != last + 1), 0.5, f"{capture.about['resumed_at']}, not {last + 1}"
    )
    for kind in ("weights", "optimizer"):
        files: list[Tensors] = [capture.tensors(f"restored/{kind}"), capture.tensors(f"step{last}/{kind}")]
        for name in files[1].names:
            same = name in files[0] and torch.allclose(files[0][name].double(), files[1][name].double(), 1e-5, 1e-12)
            yield Row(f"{kind} {name}", float(not same), 0.5, "is not what was saved")


STAGES: dict[str, Callable[[Pair, int], Iterator[Row]]] = {
    "schedule": _schedule,
    "initial weights": _initial,
    "batch": _batch,
    "output": lambda pair, step: outputs.rows(pair, step, ("output",)),
    "loss": lambda pair, step: _numbers(pair, step, "loss"),
    "gradient": _tensors("gradients"),
    "norm": lambda pair, step: _numbers(pair, step, "norm"),
    "expert load": _load,
    "clipped gradient": _tensors("clipped"),
    "optimizer state": _tensors("optimizer"),
    "update": _update,
    "buffers": _buffers,
}
"""What is compared of a step, in the order in which it is computed."""
