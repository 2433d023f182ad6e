"""What the modules of ranks return, compared with the same samples, positions and features of one device.

A rank has some samples of a batch, with context or sequence parallelism some of their positions, and with tensor
parallelism some of the features: which ones follows from its place and from the sizes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from traindiff.capture_files import RankStep
from traindiff.fit import PART, ROUNDING, Fit, least_squares, number, ranges
from traindiff.formulas import Formula
from traindiff.pair import LIMITS, MULTIPLE, Pair, Row, Stage, Where, largest


def rows(pair: Pair, step: int) -> Iterator[Row]:
    """Yield a row per tensor that a module returns, in the order of the forward pass."""
    ranks, reference = pair.actual.ranks(step), pair.reference.ranks(step)
    if not ranks or not reference:
        return
    whole = _Whole(reference[0])
    twin = _Whole(pair.twin.ranks(step)[0]) if pair.twin else None
    for name in whole.names():
        where = Where()
        places: list[tuple[RankStep, int, Any]] = []
        difference = size = of_twin = 0.0
        for rank in ranks:
            for micro, each in rank.outputs():
                if each != name or not rank.samples(micro):
                    continue
                placed = _placed(rank, micro, name, whole, ranks)
                if placed is None:
                    continue
                value, expected, positions = placed
                # Of torch, as max() would miss what is not a number.
                difference = largest(torch.tensor([difference, largest(distance(value, expected))]))
                size = max(size, largest(expected[torch.isfinite(expected)]))
                if twin:
                    moved, unmoved = (each.rows(name, rank.samples(micro)) for each in (twin, whole))
                    of_twin = max(of_twin, largest(distance(moved, unmoved)))
                where.values.append((value, expected))
                places.append((rank, micro, positions))
        if places:
            unit = size or 1.0
            row = Row(name, difference / unit, max(pair.limit(LIMITS), MULTIPLE * of_twin / unit), "", where)
            if row.differs:
                for place, (value, expected) in zip(places, where.values, strict=True):
                    _note(where, *place, distance(value, expected), row.limit * unit)
            yield row


class _Whole:
    """What the modules of one device returned, by sample."""

    def __init__(self, rank: RankStep) -> None:
        self.rank = rank
        self.at = {
            sample: (micro, row)
            for micro in range(len(rank.notes["indices"]))
            for row, sample in enumerate(rank.samples(micro))
        }
        self._read: dict[tuple[int, str], Tensor] = {}

    def names(self) -> list[str]:
        """Return the names of outputs, in the order in which the modules returned."""
        names, order = {name for _, name in self.rank.outputs()}, self.rank.order
        return sorted(names, key=lambda name: (order.get(name.rpartition("/")[0], -1), name))

    def has(self, name: str, samples: list[int]) -> bool:
        """Return whether it has a row for each sample; a module may return something else, or not at all."""
        full = {micro: f"{micro}/output/{name}" for micro in {self.at[sample][0] for sample in samples}}
        return all(
            key in self.rank.tensors and self.rank.tensors.shape(key)[0] >= len(self.rank.samples(micro))
            for micro, key in full.items()
        )

    def rows(self, name: str, samples: list[int]) -> Tensor:
        """Return the rows of samples: (samples, ...), only those that it has, cut to the shortest."""
        found = [self._tensor(self.at[sample][0], name)[self.at[sample][1]] for sample in samples if sample in self.at]
        if not found:
            return torch.zeros(0)
        shapes = [each.shape for each in found]
        least = [min(sizes) for sizes in zip(*shapes, strict=True)]
        return torch.stack([each[tuple(slice(end) for end in least)] for each in found]).double()

    def _tensor(self, micro: int, name: str) -> Tensor:
        key = (micro, name)
        if key not in self._read:
            self._read = {key: self.rank.output(*key)} | dict([*self._read.items()][:3])
        return self._read[key]


def _placed(
    rank: RankStep, micro: int, name: str, whole: _Whole, ranks: list[RankStep]
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Return a rank's values, those of one device at the same places, and its positions; None if they cannot be
    compared.
    """
    samples = [sample for sample in rank.samples(micro) if sample in whole.at]
    value = rank.output(micro, name)
    parts = _parts_of_samples(rank, micro, name, ranks) if value.dim() == 1 else []
    if not samples or value.shape[0] < len(rank.samples(micro)) or rank.lacks(value):
        return None
    keep = [row for row, sample in enumerate(rank.samples(micro)) if sample in whole.at]
    if not whole.has(name, samples):
        return None
    value, expected = value[keep].double(), whole.rows(name, samples)
    if value.dim() != expected.dim():
        return None
    if len(parts) > 1:
        totals = torch.stack([part[keep].double() for part in parts]).sum(0)
        value = min(totals, totals / len(parts), key=lambda each: largest(distance(each, expected)))
    positions: Tensor | None = None
    last = value.dim() - 1
    if last >= 1:
        if last > 1 or rank.about["sequence"]["ranks"] > 1:
            positions = _positions(rank, micro, value, expected.shape[1])
            value, expected, positions = _aligned(value, expected, positions)
            if value.shape[1] == 0:
                return None
        if value.shape[last] != expected.shape[last]:
            features = _chunk(expected.shape[last], *_tensor_parallel(rank))
            if len(features) != value.shape[last]:
                return None
            expected = expected[..., features]
    return (value, expected, positions) if value.shape == expected.shape else None


def _parts_of_samples(rank: RankStep, micro: int, name: str, ranks: list[RankStep]) -> list[Tensor]:
    """Return numbers per sample, (rows,), of all ranks with a part of the same sequences. One device has their sum (a
    loss), or their mean (an imbalance).
    """
    if rank.about["sequence"]["ranks"] == 1:
        return []
    place = rank.place | {"cp": 0}
    return [each.output(micro, name) for each in ranks if each.place | {"cp": 0} == place]


def _positions(rank: RankStep, micro: int, value: Tensor, length: int) -> Tensor:
    """Return the positions in the whole sequence that a rank's tensor (rows, positions, ...) has; ``length``: number of
    positions on one device, which may have padded the samples to another length.
    """
    own, split = value.shape[1], rank.about["sequence"]
    parts, wholes = rank.lengths(micro)
    if split["ranks"] > 1:
        is_part = length <= own * split["ranks"] and own < length
        if (own in parts) != (own in wholes) and (value.dim() > 2 or own != length):
            is_part = own in parts
        if is_part:
            return _pieces(own, **split)
    elif value.dim() > 2 and own not in parts:
        for before in (*sorted(parts), length):
            chunk = _chunk(before, *_tensor_parallel(rank))
            if len(chunk) == own < before:
                return chunk
    return torch.arange(length)


def _aligned(value: Tensor, expected: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return both at the same positions, without those after the end of one of them."""
    positions = positions[: value.shape[1]]
    inside = positions < expected.shape[1]
    return value[:, : len(positions)][:, inside], expected[:, positions[inside]], positions[inside]


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


def _note(where: Where, rank: RankStep, micro: int, positions: Any, off: Tensor, limit: float) -> None:
    wrong = ~(off <= limit)
    _mark(where, "sample", rank.samples(micro), wrong.flatten(1).any(1) if off.dim() > 1 else wrong)
    if positions is not None and off.dim() < 4:  # others are pictures
        _mark(where, "position", positions.tolist(), wrong.transpose(0, 1).flatten(1).any(1))
    _mark(where, "rank", [rank.rank], wrong.any().reshape(1))


def _mark(where: Where, kind: str, names: list[int], wrong: Tensor) -> None:
    found = where.places.setdefault(kind, {})
    for name, is_wrong in zip(names, wrong.tolist(), strict=False):
        found[name] = found.get(name, False) or is_wrong


def places(stage: Stage) -> list[str]:
    """Return at which samples and positions, and on which ranks, the first output differs."""
    where = stage.wrong[0].where
    found = []
    for name, each in where.places.items() if where else ():
        wrong = [place for place, is_wrong in each.items() if is_wrong]
        if len(wrong) < len(each):
            rows = " (rows of the prepared data)" * (name == "sample")
            found.append(f"Of {len(each)} {name}s{rows}, only these differ: {ranges(wrong)}.")
    return found


def explain(pair: Pair, stage: Stage) -> list[Formula]:
    """Return the formula of a bias that is added, if it holds for the first output that differs."""
    row = stage.wrong[0]
    if row.where is None:
        return []
    limit = row.limit * max(largest(other[torch.isfinite(other)]) for _, other in row.where.values)
    wrong = [(value, other) for value, other in row.where.values if bool((~(distance(value, other) <= limit)).any())]
    expected = torch.cat([other.flatten() for _, other in wrong])
    if not all(bool(each.isfinite().all()) for both in wrong for each in both):
        return []
    name = f"{row.name.rpartition('/')[0]}.bias"
    initial = pair.reference.tensors("initial")
    if name not in initial or initial.shape(name)[-1] != wrong[0][0].shape[-1]:
        return []
    off = torch.cat([(value - other).flatten(0, -2) for value, other in wrong])
    off = off[(off.abs() > limit).any(1)]
    if not (fit := _solve(pair, off, initial[name].double().expand_as(off), expected)):
        return []
    times = number(fit.solved[0])
    return [Formula("bias", f"{times} times {name} is added", fit)]


def _solve(pair: Pair, off: Tensor, term: Tensor, expected: Tensor) -> Fit | None:
    """Return the fit of a difference by a multiple of a term, if it holds (see fit.py)."""
    solved = least_squares(term.reshape(-1, 1), off.flatten()) if off.numel() > 1 else None
    if solved is None:
        return None
    left, whole = float((off - solved * term).norm()), float(off.norm())
    holds = left <= min(pair.limit(ROUNDING) * float(expected.norm()), pair.limit(PART) * whole)
    return Fit(solved.tolist(), left / whole) if holds else None
