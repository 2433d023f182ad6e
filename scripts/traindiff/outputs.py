"""What ranks read and what their modules return, compared with the same samples, positions and features of one device.

A rank has some samples of a batch, with context or sequence parallelism some of their positions, and with tensor
parallelism some of the features: which ones follows from its place and from the sizes.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from traindiff.capture_files import RankStep
from traindiff.fit import PART, ROUNDING, Fit, least_squares, number, ranges
from traindiff.formulas import Formula
from traindiff.pair import LIMITS, MULTIPLE, Pair, Row, Stage, Where, largest

FILLS = {"targets": -100, "mask": 0}
"""Values after the end of a sample."""


def rows(pair: Pair, step: int, kinds: tuple[str, ...]) -> Iterator[Row]:
    """Yield a row per tensor or module, in the order of the forward pass."""
    ranks, reference = pair.actual.ranks(step), pair.reference.ranks(step)
    if not ranks or not reference:
        return
    whole = _Whole(reference[0])
    twin = _Whole(pair.twin.ranks(step)[0]) if pair.twin else None
    for kind in kinds:
        for name in whole.names(kind):
            where = Where()
            places: list[tuple[RankStep, int, Any, Any]] = []
            difference = size = of_twin = 0.0
            for rank in ranks:
                for micro, each in rank.every(kind):
                    if each != name or not rank.samples(micro):
                        continue
                    placed = _placed(rank, micro, kind, name, whole, ranks)
                    if placed is None:
                        continue
                    value, expected, positions, features = placed
                    difference = _larger(difference, distance(value, expected))
                    size = max(size, largest(expected[torch.isfinite(expected)]))
                    if twin:
                        samples = rank.samples(micro)
                        moved, unmoved = (each.rows(kind, name, samples) for each in (twin, whole))
                        of_twin = max(of_twin, largest(distance(moved, unmoved)))
                    where.values.append((value, expected))
                    places.append((rank, micro, positions, features))
            if places:
                unit = size or 1.0
                shown = name if kind == "output" else f"{kind} {name}"
                row = Row(shown, difference / unit, max(pair.limit(LIMITS), MULTIPLE * of_twin / unit), "", where)
                if row.differs:
                    for place, (value, expected) in zip(places, where.values, strict=True):
                        _note(where, *place, distance(value, expected), row.limit * unit)
                yield row


class _Whole:
    """What one device read or computed, by sample."""

    def __init__(self, rank: RankStep) -> None:
        self.rank = rank
        self.at = {
            sample: (micro, row)
            for micro in range(len(rank.notes["indices"]))
            for row, sample in enumerate(rank.samples(micro))
        }
        self._read: dict[tuple[int, str, str], Tensor] = {}

    def names(self, kind: str) -> list[str]:
        """Names of a kind; outputs in the order in which the modules returned."""
        names = [*dict.fromkeys(name for _, name in self.rank.every(kind))]
        order = self.rank.order
        return (
            sorted(names, key=lambda name: (order.get(name.rpartition("/")[0], -1), name))
            if kind == "output"
            else names
        )

    def has(self, kind: str, name: str, samples: list[int]) -> bool:
        """Return whether it has a row for each sample; a module may return something else, or not at all."""
        full = {micro: f"{micro}/{kind}/{name}" for micro in {self.at[sample][0] for sample in samples}}
        return all(
            key in self.rank.tensors and self.rank.tensors.shape(key)[0] >= len(self.rank.samples(micro))
            for micro, key in full.items()
        )

    def rows(self, kind: str, name: str, samples: list[int]) -> Tensor:
        """Return the rows of samples: (samples, ...), only those that it has.

        Rows of other lengths are cut to the shortest; what has a fill value is filled up to the longest.
        """
        found = [
            self._tensor(self.at[sample][0], kind, name)[self.at[sample][1]] for sample in samples if sample in self.at
        ]
        if not found:
            return torch.zeros(0)
        if kind == "batch" and name in FILLS:
            longest = max(len(each) for each in found)
            found = [F.pad(each, (0, longest - len(each)), value=FILLS[name]) for each in found]
        shapes = [each.shape for each in found]
        least = [min(sizes) for sizes in zip(*shapes, strict=True)]
        return torch.stack([each[tuple(slice(end) for end in least)] for each in found]).double()

    def _tensor(self, micro: int, kind: str, name: str) -> Tensor:
        key = (micro, kind, name)
        if key not in self._read:
            self._read = {key: self.rank.get(*key)} | dict([*self._read.items()][:3])
        return self._read[key]


def _placed(
    rank: RankStep, micro: int, kind: str, name: str, whole: _Whole, ranks: list[RankStep]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None] | None:
    """Return a rank's values, those of one device at the same places, and its positions and features; None if they
    cannot be compared.
    """
    samples = [sample for sample in rank.samples(micro) if sample in whole.at]
    value = rank.get(micro, kind, name)
    parts = _parts_of_samples(rank, micro, name, ranks) if kind == "output" and value.dim() == 1 else []
    if not samples or value.shape[0] < len(rank.samples(micro)) or rank.lacks(kind, name, value):
        return None
    keep = [row for row, sample in enumerate(rank.samples(micro)) if sample in whole.at]
    if not whole.has(kind, name, samples):
        return None
    value, expected = value[keep].double(), whole.rows(kind, name, samples)
    if value.dim() != expected.dim():
        return None
    if len(parts) > 1:
        totals = torch.stack([part[keep].double() for part in parts]).sum(0)
        value = min(totals, totals / len(parts), key=lambda each: largest(distance(each, expected)))
    positions: Tensor | None = None
    features: Tensor | None = None
    last = value.dim() - 1
    if last >= 1:
        has_positions = last > 1 or rank.about["sequence"]["ranks"] > 1 or kind != "output"
        if has_positions:
            positions = _positions(rank, micro, kind, name, value, expected.shape[1])
            value, expected, positions = _aligned(value, expected, positions, name)
            if value.shape[1] == 0:
                return None
        if value.shape[last] != expected.shape[last] and kind == "output":
            features = _chunk(expected.shape[last], *_tensor_parallel(rank))
            if len(features) != value.shape[last]:
                return None
            expected = expected[..., features]
    return (value, expected, positions, features) if value.shape == expected.shape else None


def _parts_of_samples(rank: RankStep, micro: int, name: str, ranks: list[RankStep]) -> list[Tensor]:
    """Return numbers per sample, (rows,), of all ranks with a part of the same sequences. One device has their sum (a
    loss), or their mean (an imbalance).
    """
    if rank.about["sequence"]["ranks"] == 1:
        return []
    place = rank.place | {"cp": 0}
    return [each.get(micro, "output", name) for each in ranks if each.place | {"cp": 0} == place]


def _positions(rank: RankStep, micro: int, kind: str, name: str, value: Tensor, length: int) -> Tensor:
    """Return the positions in the whole sequence that a rank's tensor (rows, positions, ...) has; ``length``: number of
    positions on one device, which may have padded the samples to another length.
    """
    own, split = value.shape[1], rank.about["sequence"]
    parts, wholes = rank.lengths(micro)
    if split["ranks"] > 1:
        is_part = length <= own * split["ranks"] and own < length
        if kind == "batch" and (parts or wholes):
            is_part = name in rank.sequences
        elif (own in parts) != (own in wholes) and (value.dim() > 2 or own != length):
            is_part = own in parts
        if is_part:
            return _pieces(own, **split)
    elif value.dim() > 2 and own not in parts:
        for before in (*sorted(parts), length):
            chunk = _chunk(before, *_tensor_parallel(rank))
            if len(chunk) == own < before:
                return chunk
    return torch.arange(length)


def _aligned(value: Tensor, expected: Tensor, positions: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return both at the same positions; what is after the end of one of them is compared with what fills it."""
    length = expected.shape[1]
    if name in FILLS and value.dim() == 2 and len(positions) <= value.shape[1]:
        filled = torch.full_like(value, FILLS[name])
        where = torch.arange(value.shape[1]) if len(positions) < value.shape[1] else positions
        inside = where < length
        filled[:, inside] = expected[:, where[inside]]
        return value, filled, where
    if len(positions) == length == value.shape[1]:
        return value, expected[:, positions] if _out_of_order(positions) else expected, positions
    positions = positions[: value.shape[1]]
    inside = positions < length
    return value[:, : len(positions)][:, inside], expected[:, positions[inside]], positions[inside]


def _out_of_order(positions: Tensor) -> bool:
    """Return whether positions are out of order, so that they have to be looked up."""
    return not torch.equal(positions, torch.arange(len(positions)))


def _pieces(length: int, *, ranks: int, rank: int, head_tail: bool) -> Tensor:
    """Return the positions that a rank has (as Shardlab's models/_sequence.py, whose mistakes this must not repeat)."""
    numbers = [rank, 2 * ranks - 1 - rank] if head_tail else [rank]
    size = length // len(numbers)
    return torch.cat([torch.arange(number * size, (number + 1) * size) for number in numbers])


def _chunk(size: int, count: int, place: int) -> Tensor:
    """Return the indices of a part, as PyTorch splits a dimension."""
    chunks = torch.arange(size).chunk(count)
    return chunks[place] if place < len(chunks) else torch.arange(0)


def _tensor_parallel(rank: RankStep) -> tuple[int, int]:
    """Return the number of tensor-parallel ranks, and which of them a rank is."""
    return rank.mesh.get("tp", 1), rank.place.get("tp", 0)


def distance(value: Tensor, expected: Tensor) -> Tensor:
    """Return absolute differences: 0 also where both are the same infinity, such as masked scores."""
    return (value - expected).abs().masked_fill(value == expected, 0.0)


def _larger(number: float, off: Tensor) -> float:
    """Return the largest of these; nan if one is, which max() would miss."""
    most = largest(off)
    return number if math.isnan(number) or most <= number else most


def _note(where: Where, rank: RankStep, micro: int, positions: Any, features: Any, off: Tensor, limit: float) -> None:
    wrong = ~(off <= limit)
    _mark(where, "sample", rank.samples(micro), wrong.flatten(1).any(1) if off.dim() > 1 else wrong)
    if positions is not None and off.dim() > 1:
        _mark(where, "position", positions.tolist(), wrong.transpose(0, 1).flatten(1).any(1))
    if off.dim() > 1 and (positions is None or off.dim() > 2):
        names = features if features is not None else torch.arange(off.shape[-1])
        _mark(where, "feature", names.tolist(), wrong.flatten(0, -2).any(0))
    _mark(where, "rank", [rank.rank], wrong.any().reshape(1))


def _mark(where: Where, kind: str, names: list[int], wrong: Tensor) -> None:
    found = where.places.setdefault(kind, {})
    for name, is_wrong in zip(names, wrong.tolist(), strict=False):
        found[name] = found.get(name, False) or is_wrong


def places(stage: Stage) -> list[str]:
    """Return at which samples, positions and features, and on which ranks, the first output differs."""
    where = stage.wrong[0].where
    found = []
    if stage.kind == "output" and stage.before:
        found.append(f"The previous output, that of {stage.before.module or 'the model'}, is equal.")
    for name, each in where.places.items() if where else ():
        wrong = [place for place, is_wrong in each.items() if is_wrong]
        if len(wrong) < len(each):
            rows = " (rows of the prepared data)" * (name == "sample")
            found.append(f"Of {len(each)} {name}s{rows}, only these differ: {ranges(wrong)}.")
    return found


def explain(pair: Pair, stage: Stage) -> list[Formula]:
    """Return the formulas that hold for the first output, or part of the batch, that differs."""
    row = stage.wrong[0]
    if row.where is None:
        return []
    limit = row.limit * max(largest(other[torch.isfinite(other)]) for _, other in row.where.values)
    wrong = [(value, other) for value, other in row.where.values if bool((~(distance(value, other) <= limit)).any())]
    actual, expected = (torch.cat([each[side].flatten() for each in wrong]) for side in (0, 1))
    if not bool(torch.isfinite(actual).all() and torch.isfinite(expected).all()):
        return []
    found = [*_of_batch(*wrong[0])] if stage.kind == "batch" else []
    if found:
        return found
    name = f"{row.module}.bias"
    initial = pair.reference.tensors("initial")
    if stage.kind == "output" and name in initial and initial.shape(name)[-1] == wrong[0][0].shape[-1]:
        off = torch.cat([(value - other).flatten(0, -2) for value, other in wrong])
        off = off[(off.abs() > limit).any(1)]
        bias = initial[name].double().expand_as(off)
        if fit := _solve(pair, off, [bias], expected):
            times = number(fit.solved[0])
            found.append(
                Formula("bias", f"{times} times {name} is added", f"output = the reference's + {times} x {name}", fit)
            )
    if fit := _solve(pair, actual - expected, [expected], expected):
        times = number(1 + fit.solved[0])
        cause = "scaled inputs" if stage.kind == "batch" else "factor of some"
        found.append(Formula(cause, f"{times} ({row.name})", f"values = {times} x the reference's", fit))
    elif stage.kind == "batch" and (
        fit := _solve(pair, actual - expected, [expected, torch.ones_like(expected)], expected)
    ):
        a, b = 1 + fit.solved[0], fit.solved[1]
        text = f"{number(a)} times the reference's plus {number(b)}"
        found.append(Formula("scaled inputs", text, "values = a x the reference's + b", fit))
    return found


def _solve(pair: Pair, off: Tensor, terms: list[Tensor], expected: Tensor) -> Fit | None:
    """Return the fit of a difference by a sum of terms, if it holds (see fit.py)."""
    matrix = torch.stack([term.flatten() for term in terms], 1)
    solved = least_squares(matrix, off.flatten()) if off.numel() > len(terms) else None
    if solved is None:
        return None
    left, whole = float((off.flatten() - matrix @ solved).norm()), float(off.norm())
    rounding = pair.limit(ROUNDING) * float(expected.norm())
    return (
        Fit(solved.tolist(), left / whole, off.numel(), 1) if left <= min(rounding, pair.limit(PART) * whole) else None
    )


def _of_batch(value: Tensor, other: Tensor) -> Iterator[Formula]:
    if value.dim() < 2 or value.shape[1] < 3:
        return
    fit = Fit([], 0.0, value.numel(), 1)
    for by in (1, -1):
        if torch.equal(value[:, 1:-1], other.roll(-by, 1)[:, 1:-1]):
            yield Formula("shifted targets", f"by {by} position", f"value at i = the reference's at i + {by}", fit)
            return
    filled = (other == FILLS["targets"]) & (value != FILLS["targets"])
    if bool(filled.any()) and torch.equal(value[~filled], other[~filled]):
        yield Formula("padding counts", "", "equal but where the reference has -100", fit)
