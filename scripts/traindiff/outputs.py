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

from traindiff import patterns
from traindiff.capture_files import RankStep
from traindiff.evidence import Evidence
from traindiff.pair import LIMITS, MULTIPLE, Pair, Row, Stage, Where

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
                    size = max(size, _most(expected[torch.isfinite(expected)].abs()))
                    if twin:
                        samples = rank.samples(micro)
                        moved, unmoved = (each.rows(kind, name, samples) for each in (twin, whole))
                        of_twin = max(of_twin, _most(distance(moved, unmoved)))
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
        value = min(totals, totals / len(parts), key=lambda each: _most(distance(each, expected)))
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
    most = _most(off)
    return number if math.isnan(number) or most <= number else most


def _most(value: Tensor) -> float:
    return float(value.max()) if value.numel() else 0.0


def _note(where: Where, rank: RankStep, micro: int, positions: Any, features: Any, off: Tensor, limit: float) -> None:
    wrong = ~(off <= limit)
    _mark(where.ranks, [rank.rank], wrong.any().reshape(1))
    _mark(where.samples, rank.samples(micro), wrong.flatten(1).any(1) if off.dim() > 1 else wrong)
    if positions is not None and off.dim() > 1:
        _mark(where.positions, positions.tolist(), wrong.transpose(0, 1).flatten(1).any(1))
    if off.dim() > 1 and (positions is None or off.dim() > 2):
        names = features if features is not None else torch.arange(off.shape[-1])
        _mark(where.features, names.tolist(), wrong.flatten(0, -2).any(0))


def _mark(found: dict[int, bool], names: list[int], wrong: Tensor) -> None:
    for name, is_wrong in zip(names, wrong.tolist(), strict=False):
        found[name] = found.get(name, False) or is_wrong


def look_at_outputs(pair: Pair, stage: Stage, found: Evidence) -> None:
    """Look at the first output, or part of the batch, that differs."""
    row = stage.wrong[0]
    where = row.where
    if where is None:
        found.note("name", row.name)
        found.say(f"{row.name}: {row.note}.")
        return
    module = row.module
    index = row.name.rpartition("/")[2]
    if stage.kind == "output":
        found.note("inside", *pair.reference.about.get("modules", {}).get(module, []))
        found.note("output", "logits" if not module and index == "0" else index if not module else "module")
        found.note("index", index)
        found.note("outputs", "all" if len(stage.wrong) == len(stage.rows) else "some")
        if stage.before:
            found.say(f"The previous output, that of {stage.before.module or 'the model'}, is equal.")
    else:
        found.note("name", row.name.split(" ")[1])
    _places(pair, stage, where, found)
    _values(pair, stage, where, found)


def _places(pair: Pair, stage: Stage, where: Where, found: Evidence) -> None:
    """Say at which samples, positions and features, and on which ranks."""
    for name, places in (
        ("sample", where.samples),
        ("position", where.positions),
        ("feature", where.features),
        ("rank", where.ranks),
    ):
        wrong = [place for place, is_wrong in places.items() if is_wrong]
        if len(places) < 2:
            continue
        if len(wrong) == len(places):
            found.note(f"{name}s", "all")
            continue
        found.note(f"{name}s", "some")
        found.say(f"Of {len(places)} {name}s, only these differ: {patterns.ranges(wrong)}.")
    if len(where.positions) > 1:
        found.note("positions", *_named_positions(pair, where))
    padded = _padded(pair)
    wrong_samples = {sample for sample, is_wrong in where.samples.items() if is_wrong}
    if wrong_samples and wrong_samples == _of_later_micro_batches(pair, stage.step) & {*where.samples}:
        found.note("samples", "of later micro-batches")
        found.say("These are the samples of every micro-batch except each rank's first.")
    if padded and wrong_samples and wrong_samples <= padded and not padded >= {*where.samples}:
        found.note("samples", "padded")
        found.say("All of these samples are padded, because their batch has longer ones.")


def _named_positions(pair: Pair, where: Where) -> list[str]:
    wrong = {place for place, is_wrong in where.positions.items() if is_wrong}
    right = {*where.positions} - wrong
    length = max(where.positions) + 1
    names = []
    if right == {0}:
        names.append("not the first")
    if right == {length - 1}:
        names.append("not the last")
    ranks = pair.actual.about.get("ranks") or [{}]
    split = ranks[0].get("sequence", {"ranks": 1})
    if split["ranks"] > 1:
        pieces = split["ranks"] * (2 if split["head_tail"] else 1)
        size = -(-length // pieces)
        if right and right == set(range(min(wrong))) and len(right) % size == 0:
            names.append("from a boundary on")
        if wrong <= {place for place in range(length) if place % size == size - 1}:
            names.append("at boundaries")
        if right >= set(range(size)):
            names.append("not the first piece")
    return names


def _of_later_micro_batches(pair: Pair, step: int) -> set[int]:
    ranks = pair.actual.ranks(step)
    return {s for rank in ranks for micro in range(1, len(rank.notes["indices"])) for s in rank.samples(micro)}


def _padded(pair: Pair) -> set[int]:
    """Return the samples of the first step with padding."""
    rank = pair.reference.ranks(pair.steps[0])[0]
    found: set[int] = set()
    for micro, name in rank.every("batch"):
        if name == "mask":
            short = ~rank.get(micro, "batch", name).bool().all(1)
            found |= {sample for sample, is_short in zip(rank.samples(micro), short.tolist(), strict=False) if is_short}
    return found


def _values(pair: Pair, stage: Stage, where: Where, found: Evidence) -> None:
    """Note how the values of the ranks and micro-batches that differ do: by a factor, a bias, their own statistics,
    zeros at other places, another order, or by nothing of this.
    """
    row = stage.wrong[0]
    limit = row.limit * max(_largest(other) for _, other in where.values)
    wrong = [(value, other) for value, other in where.values if _differ(value, other, limit)]
    actual, expected = (torch.cat([each[side].flatten() for each in wrong]) for side in (0, 1))
    if not bool(torch.isfinite(actual).all()):
        found.note("pattern", "nan")
        return
    fit = patterns.factor(actual, expected)
    affine = _affine(actual, expected, pair.fits)
    value, other = wrong[0]
    if stage.kind == "batch":
        _batch(value, other, found)
    bias = _bias(pair, row.module, wrong, limit)
    if fit.is_factor(pair.fits):
        found.note("pattern", "factor")
        found.say(f"The values are {fit.coefficients[0]:.6g} times the reference's.")
    elif stage.kind == "batch" and affine is not None:
        found.note("pattern", "scaled")
        found.say(f"The values are {affine[0]:.6g} times the reference's plus {affine[1]:.6g}.")
    elif bias.residual < pair.fits:
        found.note("pattern", "bias" if bias.coefficients[0] > 0 else "bias left out")
        found.say(
            f"In each row that differs, the difference is {bias.coefficients[0]:.4g} times {row.module}.bias (this "
            f"leaves {bias.residual:.1g} of it)."
        )
    elif stage.kind == "output" and _has_own_statistics(where.values, pair.limit(LIMITS)):
        found.note("pattern", "own statistics")
        found.say(
            "In each rank's samples of a micro-batch, every feature has the mean that it has in the reference's whole "
            "batch: each rank normalizes its own samples."
        )
    elif all(_other_zeros(*each) for each in wrong):
        found.note("pattern", "zeros")
        found.say("Zeros are in different places.")
    elif all(patterns.is_permuted(*each, limit) for each in wrong):
        found.note("pattern", "permuted")
        found.say("The rows are the reference's in a different order.")
    else:
        found.note("pattern", "none")
        found.exclude("a factor", fit.left)
        if math.isfinite(bias.residual):
            found.exclude(f"a multiple of {row.module}.bias", bias.residual)
        for pattern in ("each rank's own statistics", "zeros in other places", "rows in another order"):
            found.exclude(pattern, math.inf)


def _largest(value: Tensor) -> float:
    finite = value[torch.isfinite(value)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _differ(value: Tensor, other: Tensor, limit: float) -> bool:
    return bool((~(distance(value, other) <= limit)).any())


def _has_own_statistics(values: list[tuple[Tensor, Tensor]], near: float) -> bool:
    """Return whether each feature has one mean in all ranks and micro-batches, that of the reference's whole batch, but
    in the reference's same samples other ones: as after a batch norm.
    """
    if len(values) < 2 or values[0][0].dim() < 2:
        return False
    for dim in {1, values[0][0].dim() - 1}:
        if len({value.shape[dim] for value, _ in values}) > 1:
            continue
        own, others = (
            torch.stack([each[side].movedim(dim, 0).flatten(1).mean(1) for each in values]) for side in (0, 1)
        )
        sizes = torch.tensor([float(len(value)) for value, _ in values]).double()
        whole = (others * sizes[:, None]).sum(0) / sizes.sum()
        unit = max(float(other.std(correction=0)) for _, other in values) * near
        varies = any(float(value.std(correction=0)) > unit for value, _ in values)
        if varies and float((own - whole).abs().max()) <= unit < 0.1 * float((others - whole).abs().max()):
            return True
    return False


def _affine(actual: Tensor, expected: Tensor, fits: float) -> tuple[float, float] | None:
    ones = torch.ones_like(expected)
    fit = patterns.combination(["it"], lambda _: actual - expected, [lambda _: expected, lambda _: ones])
    return (1 + fit.coefficients[0], fit.coefficients[1]) if fit.residual < fits else None


def _bias(pair: Pair, module: str, wrong: list[tuple[Tensor, Tensor]], limit: float) -> patterns.Fit:
    """Return how many times too often a module's bias was added in the rows that differ."""
    initial = pair.reference.tensors("initial")
    name = f"{module}.bias"
    if name not in initial or initial.shape(name)[-1] != wrong[0][0].shape[-1]:
        return patterns.Fit([float("nan")], float("inf"))
    off = torch.cat([(value - other).flatten(0, -2) for value, other in wrong])
    off = off[(off.abs() > limit).any(1)]
    return patterns.multiple([name], lambda _: off, lambda _: initial[name].double().expand_as(off))


def _batch(value: Tensor, other: Tensor, found: Evidence) -> None:
    if value.dim() > 1 and value.shape[1] > 2:
        for by in (1, -1):
            shifted = other.roll(-by, 1)[:, 1:-1]
            if torch.equal(value[:, 1:-1], shifted):
                found.note("content", "shifted")
                found.say(f"The values are the reference's, shifted by {by} position.")
        filled = (other == -100) & (value != -100)
        if bool(filled.any()) and torch.equal(value[~filled], other[~filled]):
            found.note("content", "padding counts")
            found.say("Padding positions count as targets.")


def _other_zeros(value: Tensor, other: Tensor) -> bool:
    """Return whether zeros are at other places, and where neither has one, values are the same."""
    both = (value != 0) & (other != 0)
    same = torch.allclose(value[both], other[both], 1e-6)
    return same and value.is_floating_point() and float(((value == 0) != (other == 0)).double().mean()) > 0.01
