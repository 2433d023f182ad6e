"""Formulas of a gradient as a sum over samples, whose gradients the reference writes (`samples-N.safetensors`): their
sum is the reference's gradient, in which each counts once.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from traindiff.capture_files import Samples
from traindiff.fit import PART, ROUNDING, Fit, View, least_squares, listed, number, ranges
from traindiff.formulas import Formula, fewest
from traindiff.pair import Pair

SINGULAR = {"F64": 1e-10, "F32": 1e-5, "F16": 1e-2, "BF16": 1e-2}
"""Below this part of the largest singular value, gradients are not independent."""
LISTED = 16
"""Most weights in a table."""
PLURALS = {"micro-batch": "micro-batches", "rank's micro-batch": "ranks' micro-batches"}


@dataclass(frozen=True)
class Partition:
    """A division of the samples into blocks."""

    kind: str
    """What a block is: rank, micro-batch, rank's micro-batch, part (of the sequence), sample."""
    labels: tuple[object, ...]
    """The block of each sample."""

    @property
    def blocks(self) -> list[object]:
        return [*dict.fromkeys(self.labels)]

    @property
    def plural(self) -> str:
        return PLURALS.get(self.kind, f"{self.kind}s")


@dataclass
class _Sums:
    """The gradients of the samples of a step, and what both trainings have in their place."""

    view: View
    samples: Samples
    rows: Tensor
    """(samples, values), in the order of ``samples.taken``."""
    actual: Tensor

    def fit(self, predicted: Tensor, unknowns: list[float]) -> Fit | None:
        """Return a fit if this is the other training's gradient, up to rounding."""
        expected = self.rows.sum(0)
        left = float((self.actual - predicted).norm())
        whole = float((self.actual - expected).norm())
        size = max(float(self.actual.norm()), float(expected.norm()))
        if left <= self.view.limit(ROUNDING) * size and left <= self.view.limit(PART) * whole:
            return Fit(unknowns, left / whole) if len(self.actual) > len(unknowns) else None
        return None

    def solve(self, matrix: Tensor) -> Fit | None:
        """Return the fit of the gradient by the rows of a matrix, if it holds and says more than its unknowns."""
        if matrix.shape[1] <= len(matrix):
            return None
        weights = least_squares(matrix.T, self.actual, self.view.limit(SINGULAR))
        return None if weights is None else self.fit(weights @ matrix, weights.tolist())

    def blocks(self, partition: Partition) -> Tensor:
        """Return the sum of the gradients of each block."""
        blocks = partition.blocks
        place = torch.tensor([blocks.index(label) for label in partition.labels])
        return self.rows.new_zeros(len(blocks), self.rows.shape[1]).index_add(0, place, self.rows)


def explain(view: View) -> list[Formula]:
    """Return the formulas that hold with the fewest unknowns.

    Weights of the loss explain all parameters; those of a reduction that leaves some out, only the ones that differ.
    """
    file = view.pair.reference.tensors(f"step{view.step}/samples")
    gradients = [capture.tensors(f"step{view.step}/gradients") for capture in view.pair.captures]
    if not file.names or not all(gradients) or not any(bool(view.actual(name).any()) for name in view.names):
        return []
    samples = Samples(file)
    every = [name for name in samples.names if all(name in each for each in gradients)]
    samples.ids = [view.pair.sample(each) for each in samples.ids]
    for names in (every, [name for name in every if name in view.names]):
        sums = _sums(view, samples, names) if names and len(samples) > 1 else None
        if sums and (found := fewest(_formulas(sums))):
            return found
    return []


def _sums(view: View, samples: Samples, names: list[str]) -> _Sums | None:
    rows = torch.cat([samples[name] for name in names], 1)
    reads = [view.pair.gradients(capture, f"step{view.step}/gradients") for capture in view.pair.captures]
    actual, expected = (torch.cat([samples.kept(name, read(name)) for name in names]) for read in reads)
    if not all(bool(torch.isfinite(each).all()) for each in (rows, actual, expected)):
        return None
    if float((rows.sum(0) - expected).norm()) > view.limit(ROUNDING) * float(expected.norm()):
        return None
    return _Sums(view, samples, rows, actual)


def _formulas(sums: _Sums) -> Iterator[Formula]:
    partitions = [*_partitions(sums.view, sums.samples)]
    for partition in partitions:
        yield from _means(sums, partition)
    for partition in sorted(partitions, key=lambda each: len(each.blocks)):
        if fit := sums.solve(sums.blocks(partition)):
            yield from _of_blocks(sums, partition, fit)
            break
    by_sample = Partition("sample", tuple(range(len(sums.samples))))
    yield from _means(sums, by_sample)


def _means(sums: _Sums, partition: Partition) -> Iterator[Formula]:
    """The weight of a sample is s x the number of all targets (or samples) / that of its block."""
    targets, blocks = sums.samples.targets, len(partition.blocks)
    ways = {"targets": targets} if targets else {}
    if len({*targets}) != 1:  # else both are the same
        ways["samples"] = [1] * len(sums.samples)
    for what, counts in ways.items():
        own: Counter[object] = Counter()
        for label, count in zip(partition.labels, counts, strict=True):
            own[label] += count
        if len({*own.values()}) < 2 or not all(own.values()):
            continue
        weights = torch.tensor([sum(counts) / own[label] for label in partition.labels], dtype=torch.float64)
        predicted = weights @ sums.rows
        times = float(sums.actual @ predicted) / float(predicted @ predicted)
        is_mean = sums.view.same(times * blocks, 1, 10)
        times = 1 / blocks if is_mean else 1.0
        if not (fit := sums.fit(times * predicted, [])):
            continue
        text = f"the {blocks} {partition.plural}' means are added"
        if is_mean:
            text = f"the mean of the {partition.plural}' means, not of all {what}"
        table = _table(sums.samples, (times * weights).tolist(), partition)
        yield Formula("means of blocks", text, fit, table)


def _of_blocks(sums: _Sums, partition: Partition, fit: Fit) -> Iterator[Formula]:
    """Each block has a weight of its own: by which they are lost, not reduced, or weighted."""
    view, blocks, near = sums.view, partition.blocks, 100 * sums.view.near
    weights = dict(zip(blocks, fit.solved, strict=True))
    size = max(map(abs, fit.solved))
    if all(abs(each - fit.solved[0]) <= near * size for each in fit.solved):
        return  # a factor
    table = _table(sums.samples, [weights[label] for label in partition.labels], partition)
    rounded = {
        block: round(value) if abs(value - round(value)) <= near * size else value for block, value in weights.items()
    }
    if not sums.fit(torch.tensor([*rounded.values()]).double() @ sums.blocks(partition), []):
        rounded = weights
    lost = [block for block, value in rounded.items() if value == 0]
    left = [value for block, value in rounded.items() if block not in lost]
    each = ", ".join(f"{_label(block)}: {number(value)}" for block, value in rounded.items())
    alone = bool(lost) and len(left) == 1
    # Where ranks have the same gradients, one of them may have sent its own.
    own = bool(disagreements(view.pair, view.step))
    if own and alone and partition.kind == "rank":
        counting = _label(next(block for block in blocks if block not in lost))
        cause, text = "not reduced", f"only rank {counting} of {len(blocks)} counts, {number(left[0])} times"
    elif own and partition.kind == "rank's micro-batch" and (text := _unreduced(rounded)):
        cause = "not reduced"
    elif lost:
        cause = "lost blocks"
        counting = listed((f"{_label(block)} ({number(value)} times)" for block, value in rounded.items() if value), 8)
        text = f"of {len(blocks)} {partition.plural} only {'this one counts' if alone else 'these count'}: {counting}"
    elif len(blocks) == len(sums.samples):
        return  # any other loss of a model with one output gives each sample a weight of its own
    else:
        cause, text = "weights of blocks", f"{partition.kind} {each}"
    yield Formula(cause, text, fit, table)


def _unreduced(weights: dict[object, float]) -> str:
    """Return which micro-batches one rank keeps for itself: there its weight is the number of ranks, others' is 0."""
    ranks, micros = ([*dict.fromkeys(block[place] for block in weights)] for place in (0, 1))  # type: ignore[index]
    own = [
        micro
        for micro in micros
        if sorted(weights.get((r, micro), 0) for r in ranks) == [0] * (len(ranks) - 1) + [len(ranks)]
    ]
    whole = [micro for micro in micros if all(weights.get((r, micro)) == 1 for r in ranks)]
    if not own or len(own) + len(whole) < len(micros):
        return ""
    return f"micro-batch{'es' * (len(own) > 1)} {listed(map(str, own), 8)} of {len(micros)}"


def _label(block: object) -> str:
    return "/".join(map(str, block)) if isinstance(block, tuple) else str(block)


def _table(samples: Samples, weights: list[float], partition: Partition) -> list[str]:
    """Return a table of the weights of the samples."""
    most = max(map(abs, weights))
    head = ["sample", *["targets"] * bool(samples.targets), partition.kind, "weight"]
    rows = [
        [
            samples.label(row),
            *map(str, samples.targets[row : row + 1]),
            _label(partition.labels[row]),
            f"{weight if abs(weight) > 1e-6 * most else 0.0:.6g}",
        ]
        for row, weight in enumerate(weights)
    ]
    lines = [head, ["---"] * len(head), *rows[:LISTED]]
    if len(rows) > LISTED:
        lines.append([f"and {len(rows) - LISTED} more", *[""] * (len(head) - 1)])
    return [f"| {' | '.join(line)} |" for line in lines]


# Which samples are whose


def reads(pair: Pair, side: int, step: int) -> list[tuple[object, int, int]]:
    """Return (sample, data-parallel rank, micro-batch) of what a training reads, if that is known."""
    capture = pair.captures[side]
    found = [
        (sample, rank.about["data_rank"], micro)
        for rank in capture.ranks(step)
        for micro in range(len(rank.notes["indices"]))
        for sample in rank.samples(micro)
    ]
    if capture.ranks(step):
        return [*dict.fromkeys(found)]  # ranks that share samples have the same data_rank
    given = capture.shown(step).get("ids") or []
    return [
        (pair.sample(sample), rank, micro)
        for rank, micros in enumerate(given)
        for micro, ids in enumerate(micros if micros and isinstance(micros[0], list) else [micros])
        for sample in ids
    ]


def counted(pair: Pair, side: int, step: int) -> Counter[object]:
    """Return how often each sample is read; in a dump once if all are read alike, as by ranks that share a sample."""
    counts = Counter(sample for sample, _, _ in reads(pair, side, step))
    is_shared = not pair.captures[side].ranks(step) and len({*counts.values()}) == 1
    return Counter(dict.fromkeys(counts, 1)) if is_shared else counts


def _partitions(view: View, samples: Samples) -> Iterator[Partition]:
    """Yield divisions of the samples by the ranks and micro-batches that read them, if they are known."""
    own = {sample: (rank, micro) for sample, rank, micro in reads(view.pair, 0, view.step)}
    if not own.keys() >= {*samples.ids} or not samples.ids:
        return
    rank, micro = ([own[each][place] for each in samples.ids] for place in (0, 1))
    for kind, labels in (("rank", rank), ("micro-batch", micro), ("part", samples.parts)):
        if len({*labels}) > 1:
            yield Partition(kind, tuple(labels))
    both = [*zip(rank, micro, strict=True)]
    if len({*rank}) > 1 and len({*micro}) > 1:
        yield Partition("rank's micro-batch", tuple(both))


def disagreements(pair: Pair, step: int) -> list[str]:
    """Return the axes along which ranks that should hold the same gradients, or weights, do not."""
    if early := [each for each in pair.steps if each <= step and pair.actual.unreduced(each)]:
        files = pair.actual.unreduced(early[0])
        when = f" of step {early[0]}; the first of them is compared" if early[0] != step else ""
        return [
            f"Ranks {ranges(files)} hold different gradients of the same parameters when the optimizer takes its "
            f"step{when}."
        ]
    ranks = pair.actual.ranks(step)
    partial = sorted({name for rank in ranks for name in rank.notes.get("partial", [])})
    found = [f"The optimizer gets partial gradients, which are not reduced: {listed(partial)}."] * bool(partial)
    for kind in ("gradients", "weights"):
        axes: dict[str, set[str]] = {}
        for place, rank in enumerate(ranks):
            for other in ranks[:place]:
                differ = [axis for axis in rank.place if rank.place[axis] != other.place[axis]]
                if len(differ) == 1:
                    for name, (norm, total, part) in rank.notes.get(kind, {}).items():
                        same = other.notes[kind].get(name)
                        if same and same[2] == part and not _same((norm, total), same):
                            axes.setdefault(differ[0], set()).add(name)
        for axis, names in axes.items():
            found.append(f"Ranks along {axis} hold different {kind} that should be the same: {listed(sorted(names))}.")
        if axes:
            break
    return found


def _same(values: tuple[float, float], others: list[float]) -> bool:
    """Return whether (norm, sum) of a tensor are another's; those that are not finite are the same if both are."""
    both = torch.tensor([values, others[:2]], dtype=torch.float64)
    return torch.allclose(both[0], both[1], 1e-5, 1e-5 * min(values[0], others[0]), True)
