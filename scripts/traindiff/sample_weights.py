"""By which weights the samples of a step count in a gradient: least squares on the gradients of the samples, which the
reference writes (`samples-N.safetensors`). Their sum is the reference's gradient, where each has weight 1.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from traindiff.capture_files import Capture, Samples
from traindiff.evidence import Evidence
from traindiff.factors import name_factor
from traindiff.pair import Pair

VALUES_PER_SAMPLE = 4
"""Fewest values of a gradient per sample: fewer are explained by any samples."""
SINGULAR = {"F64": 1e-8, "F32": 1e-3, "F16": 1e-1, "BF16": 1e-1}
"""Below this part of the largest singular value, samples cannot be told apart."""
OUTSIDE = 0.5
"""From this part of a gradient on that no weights of the samples explain, it is not these samples'."""
LISTED = 16
"""Most weights in a table."""
MORE = 4
"""How often a sample is looked for."""
_OF_A_RANK = "rank's "
_PLURALS = {
    "rank": "ranks",
    "micro-batch": "micro-batches",
    "rank's micro-batch": "micro-batches",
    "part": "sequence parts",
    "block": "blocks of samples",
    "sample": "samples",
}
NO_RANK = -1
"""Rank and micro-batch of a sample that the other training does not read."""
MODEL_AXES = {"tp", "pp", "cp", "ep", "sp", "mp"}
"""Axes whose ranks read the same samples."""


@dataclass(frozen=True)
class Weights:
    """What least squares give."""

    weights: list[float]
    residual: float
    """Part of the difference from the reference that they leave."""
    outside: float
    """Part of the gradient that they leave."""
    distinct: bool
    """Whether the gradients are independent, so that the weights are the only ones."""


@dataclass(frozen=True)
class Partition:
    """A division of the rows into blocks."""

    kind: str
    """What a block is: rank, micro-batch, part (of the sequence), block."""
    labels: tuple[object, ...]
    """The block of each row."""

    @property
    def blocks(self) -> list[object]:
        return [*dict.fromkeys(self.labels)]

    def means(self, values: Sequence[float]) -> dict[object, float]:
        return {block: sum(own) / len(own) for block, own in self._groups(values).items()}

    def sums(self, values: Sequence[float]) -> dict[object, float]:
        return {block: sum(own) for block, own in self._groups(values).items()}

    def is_constant(self, values: Sequence[float], near: float) -> bool:
        """Return whether the values of each block are one."""
        return all(max(own) - min(own) <= near * _size(values) for own in self._groups(values).values())

    def _groups(self, values: Sequence[float]) -> dict[object, list[float]]:
        found: dict[object, list[float]] = {}
        for block, value in zip(self.labels, values, strict=True):
            found.setdefault(block, []).append(value)
        return found


def look_at_samples(pair: Pair, step: int, wrong: list[str], found: Evidence) -> bool:
    """Explain the gradient of a step by weights of its samples; return whether that holds.

    ``wrong``: the parameters that differ. Weights of a loss explain all parameters; those that a reduction left out,
    only the ones that differ.
    """
    samples = pair.reference.samples(step)
    gradients = [capture.tensors(f"step{step}/gradients") for capture in pair.captures]
    if not samples or not all(gradients):
        return False
    _compare_ids(pair, step, samples, found)
    every = [name for name in samples.names if all(name in each for each in gradients)]
    samples = samples.with_gradient(every)
    fits = []
    for names in (every, [name for name in every if name in wrong]):
        if names and (fit := _fit(pair, step, names, samples, found)):
            if fit.residual < pair.fits:
                _name(pair, step, samples, fit, found)
                return True
            fits.append(fit)
    if fits:
        found.exclude("other weights of the samples", fits[0].residual)
        if fits[0].outside > OUTSIDE:
            _outside(pair, step, samples, every, fits[0], found)
    return False


def _fit(pair: Pair, step: int, names: list[str], samples: Samples, found: Evidence) -> Weights | None:
    """Return the weights that explain these parameters' gradients best, or None if nothing can be said."""
    rows = _matrix(samples, names)
    actual, expected = (_column(samples, names, pair, capture, step) for capture in pair.captures)
    if rows.shape[1] < VALUES_PER_SAMPLE * len(rows) or not all(
        bool(torch.isfinite(each).all()) for each in (rows, actual, expected)
    ):
        return None
    total = rows.sum(0)
    difference = float((total - expected).norm() / (expected.norm() or 1.0))
    if difference > pair.fits:
        found.say(
            f"The gradients of the samples add up to the reference's only up to {difference:.1g}: its samples are not "
            "independent (batch norm, an auxiliary loss), or the file is of another step."
        )
        return None
    return _solve(rows, actual, total, pair.limit(SINGULAR, f"step{step}/gradients"))


def _solve(rows: Tensor, actual: Tensor, total: Tensor, singular: float) -> Weights:
    off = actual - total
    scale = rows.norm(dim=1).clamp(min=1e-300)
    # The weights of what differs, which may be small beside the gradient.
    left, values, right = torch.linalg.svd((rows / scale[:, None]).T, full_matrices=False)
    kept = values > singular * values[0]
    more = (right[kept].T @ ((left[:, kept].T @ off) / values[kept])) / scale
    residual = float((off - rows.T @ more).norm())
    return Weights(
        (1 + more).tolist(),
        residual / (float(off.norm()) or 1.0),
        residual / (float(actual.norm()) or 1.0),
        bool(kept.all()),
    )


def _matrix(samples: Samples, names: list[str]) -> Tensor:
    return torch.cat([samples[name] for name in names], 1)


def _column(samples: Samples, names: list[str], pair: Pair, capture: Capture, step: int) -> Tensor:
    read = pair.gradients(capture, f"step{step}/gradients")
    return torch.cat([samples.kept(name, read(name)) for name in names])


def _name(pair: Pair, step: int, samples: Samples, fit: Weights, found: Evidence) -> None:
    """Note which weights these are."""
    found.note("pattern", "weights")
    found.say(f"Weights of the samples explain the gradient; they leave {fit.residual:.1g} of the difference.")
    if not fit.distinct:
        found.say("The gradients of some samples cannot be told apart: other weights may explain it as well.")
    weights, near = fit.weights, pair.near
    if max(weights) - min(weights) <= near * _size(weights):
        found.note("pattern", "factor")
        name_factor(pair, sum(weights) / len(weights), found, "The gradient of each sample")
        return
    partitions = [*_partitions(pair, step, samples)]
    fitting = [each for each in partitions if each.is_constant(weights, near) and len(each.blocks) > 1]
    counts = [("targets", samples.targets)] * bool(samples.targets) + [("samples", [1] * len(weights))]
    _table(samples, weights, fitting[0] if fitting else None, found)
    if _same_on_all_ranks(pair, step, samples, weights, near, found):
        return
    if any(_lost(each, weights, near, found) for each in fitting):
        return
    if any(_mean_of_means(pair, each, weights, *count, near, found) for each in fitting for count in counts):
        return
    by_rows = Partition("sample", tuple(range(len(weights))))
    if not _times(samples, weights, near, found) and not (
        samples.targets and _mean_of_means(pair, by_rows, weights, *counts[0], near, found)
    ):
        found.note("weights", f"by {fitting[0].kind}" if fitting else "by sample")


def _size(values: Iterable[float]) -> float:
    return max(abs(value) for value in values) or 1.0


def _same_on_all_ranks(
    pair: Pair,
    step: int,
    samples: Samples,
    weights: list[float],
    near: float,
    found: Evidence,
) -> bool:
    """By their ids, all ranks read the same samples, and only these count."""
    read: dict[int, set[object]] = {}
    for sample, rank, _ in _reads(pair, step):
        read.setdefault(rank, set()).add(sample)
    same = read[min(read)] if read else set()
    if len(read) < 2 or any(own != same for own in read.values()) or same >= {*samples.ids}:
        return False
    others = [weight for sample, weight in zip(samples.ids, weights, strict=True) if sample not in same]
    if any(abs(weight) > near * _size(weights) for weight in others):
        return False
    found.note("weights", "same samples")
    found.say(f"By their ids, all {len(read)} ranks read the same samples, and only these count.")
    return True


def _lost(partition: Partition, weights: list[float], near: float, found: Evidence) -> bool:
    """Blocks that do not count, while the others do alike."""
    means = partition.means(weights)
    lost = [block for block, value in means.items() if abs(value) <= near * _size(weights)]
    left = [value for block, value in means.items() if block not in lost]
    if not lost or max(left) - min(left) > near * _size(weights):
        return False
    kind, value = partition.kind, sum(left) / len(left)
    blocks = partition.blocks
    one = "one" if len(left) == 1 else "some"
    if kind == "block":
        if len(lost) < len(left):
            return False  # rather some samples
        as_rank, as_micro_batch = left == [means[blocks[0]]], left == [means[blocks[-1]]]
        as_rank &= abs(value - len(blocks)) <= near * value
        as_micro_batch &= abs(value - 1) <= near
        found.note("weights", "first block" if as_rank else "last block" if as_micro_batch else "some blocks")
    else:
        found.note("weights", f"{one} {kind.removeprefix(_OF_A_RANK)}")
    counting = [_label(block) for block in blocks if block not in lost]
    found.say(
        f"Of {len(blocks)} {_PLURALS[kind]}, only {', '.join(counting)} {'counts' if len(left) == 1 else 'count'}, "
        f"with a weight of {value:.6g}."
    )
    return True


def _mean_of_means(
    pair: Pair,
    partition: Partition,
    weights: list[float],
    what: str,
    counts: list[int],
    near: float,
    found: Evidence,
) -> bool:
    """Blocks whose weight is one over their number of targets (or samples): their means are added."""
    sums, means = partition.sums(counts), partition.means(weights)
    if len({*sums.values()}) == 1 or not all(sums.values()):
        return False
    products = [means[block] * sums[block] / sum(counts) for block in sums]
    if max(products) - min(products) > near * _size(products):
        return False
    times, kind, number = sum(products) / len(products), partition.kind, len(sums)
    plural = _PLURALS[kind]
    listed = ", ".join(f"{count:g}" for count in [*sums.values()][:LISTED])
    head = f"Each weight is {sum(counts)} / the number of {what} of its {kind} ({listed})"
    if abs(times * number - 1) <= near:
        found.note("weights", f"means of {plural}")
        found.say(f"{head} / {number}: the gradient is the mean of the {plural}' means, not of all {what}.")
        return True
    ways = {1.0: number} | {1 / degree: number // degree for degree in range(2, number) if number % degree == 0}
    added = next((each for value, each in ways.items() if abs(times - value) <= near * value), None)
    if added is None:
        found.note("weights", f"means of {plural}")
        name_factor(pair, times * number, found, f"The mean of the {plural}' means")
        found.say(f"{head} times {times:.6g}.")
        return True
    ranks = {block[0] for block in sums if isinstance(block, tuple)}
    found.note(
        "weights", "sum of ranks" if ranks and number // len(ranks) != added == len(ranks) else f"sum of {plural}"
    )
    found.say(
        f"{head}"
        + f" / {number // added}" * (added < number)
        + f": the means of {added} {plural} are added, not averaged."
    )
    return True


def _times(samples: Samples, weights: list[float], near: float, found: Evidence) -> bool:
    """Samples that count several times, or not at all, while most count once."""
    counts = samples.targets or [1] * len(weights)
    for once in sorted({value for value in weights if value > near * _size(weights)}):
        times = [round(weight / once) for weight in weights]
        right = all(abs(value - n * once) <= near * _size(weights) for value, n in zip(weights, times, strict=True))
        if not right or max(times) > MORE or min(times) < 0:
            continue
        divisor = sum(n * count for n, count in zip(times, counts, strict=True))
        ways = {"": 1.0, ", and the loss is divided by the targets that are left": sum(counts) / divisor}
        ways |= {", and the loss is divided by the samples that are left": len(weights) / sum(times)}
        how = next((how for how, value in ways.items() if abs(once - value) <= near), None)
        if how is not None:
            _say_times(samples, times, how, found)
            return True
    return False


def _say_times(samples: Samples, times: list[int], how: str, found: Evidence) -> None:
    for number in sorted({*times} - {1}):
        which = [row for row, each in enumerate(times) if each == number]
        found.note("weights", "doubled samples" if number else "dropped samples")
        places = {0: " (the step's first)", len(times) - 1: " (the step's last)"}
        shown = ", ".join(samples.label(row) + places.get(row, "") for row in which[:LISTED])
        counts_as = f"{number} times" if number else "0 times: it is dropped"
        found.say(f"{'Sample' if len(which) == 1 else 'Each of the samples'} {shown} counts {counts_as}{how}.")


def _shown(weight: float) -> str:
    return f"{weight if abs(weight) > 1e-9 else 0.0:.6g}"


def _label(block: object) -> str:
    if isinstance(block, tuple):
        return "/".join(map(_label, block))
    return "none" if block == NO_RANK else str(block)


def _table(samples: Samples, weights: list[float], partition: Partition | None, found: Evidence) -> None:
    """Show the weights of the samples, or of blocks where these are too many."""
    if len(weights) > LISTED and partition:
        found.table += [f"| {partition.kind} | weight |", "| --- | --- |"]
        rows: Iterable[tuple[object, ...]] = [
            (_label(block), _shown(value)) for block, value in partition.means(weights).items()
        ]
    else:
        head = ["sample", *["targets"] * bool(samples.targets), *([partition.kind] if partition else []), "weight"]
        found.table += [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
        rows = (
            (
                samples.label(row),
                *samples.targets[row : row + 1],
                *([_label(partition.labels[row])] if partition else []),
                _shown(weight),
            )
            for row, weight in enumerate(weights)
        )
    rows = [*rows]
    found.table += ["| " + " | ".join(map(str, row)) + " |" for row in rows[:LISTED]]
    if len(rows) > LISTED:
        found.table += [f"| and {len(rows) - LISTED} more |" + " |" * (found.table[0].count("|") - 2)]


def _partitions(pair: Pair, step: int, samples: Samples) -> Iterator[Partition]:
    """Yield divisions of the rows: as the other training says, as --ranks say, or in blocks of any size."""
    reads = _reads(pair, step)
    own = {sample: (rank, micro) for sample, rank, micro in reads}
    if own.keys() & {*samples.ids}:
        # A sample that no rank reads is dropped, unless others are read in its place: then blocks of samples are lost.
        if own.keys() >= {*samples.ids} or len(reads) > len(own):
            rank, micro = ([own.get(each, (NO_RANK, NO_RANK))[place] for each in samples.ids] for place in (0, 1))
            yield from _of_places(rank, micro, samples.parts)
        return
    for whole in _partitions_of_rows(pair, samples.rows):
        yield Partition(whole.kind, tuple(whole.labels[row] for row in samples.taken))


def _partitions_of_rows(pair: Pair, rows: int) -> Iterator[Partition]:
    about = pair.actual.about
    ranks = math.prod(degree for axis, degree in about.get("mesh", {}).items() if axis not in MODEL_AXES)
    micros = about.get("accumulation") or 1
    if rows % (ranks * micros) == 0:
        for rank, micro in _dealt(rows, ranks, micros):
            yield from _of_places(rank, micro, [])
    for number in (each for each in range(2, rows) if rows % each == 0):
        yield Partition("block", tuple(row * number // rows for row in range(rows)))
        for times in (each for each in range(2, rows // number + 1) if rows % (number * each) == 0):
            yield Partition("block", tuple(row * number * times // rows % number for row in range(rows)))


def _reads(pair: Pair, step: int) -> list[tuple[object, int, int]]:
    """Return (sample, data-parallel rank, micro-batch) of what the other training reads, if that is known."""
    found = [
        (sample, rank.about["data_rank"], micro)
        for rank in pair.actual.ranks(step)
        for micro in range(len(rank.notes["indices"]))
        for sample in rank.samples(micro)
    ]
    found += [
        (sample, rank, micro)
        for rank, micros in enumerate(pair.actual.shown(step).get("ids") or [])
        for micro, ids in enumerate(micros if micros and isinstance(micros[0], list) else [micros])
        for sample in ids
    ]
    return [*dict.fromkeys(found)]  # ranks that share samples have the same data_rank


def _dealt(rows: int, ranks: int, micros: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the rank and the micro-batch of each row, in the orders in which samples are usually dealt out."""
    size = rows // (ranks * micros)
    yield [row // (size * micros) for row in range(rows)], [row // size % micros for row in range(rows)]
    if ranks > 1:
        if micros > 1:
            yield [row // size % ranks for row in range(rows)], [row // (size * ranks) for row in range(rows)]
        yield [row % ranks for row in range(rows)], [row // (size * ranks) for row in range(rows)]


def _of_places(rank: list[int], micro: list[int], part: list[int]) -> Iterator[Partition]:
    for kind, labels in (("rank", rank), ("micro-batch", micro), ("part", part or rank)):
        if len({*labels}) > 1 and (kind != "part" or part):
            yield Partition(kind, tuple(labels))
    if len({*rank}) > 1 and len({*micro}) > 1:
        yield Partition("rank's micro-batch", tuple(zip(rank, micro, strict=True)))
    if part and len({*part}) > 1 and len({*zip(rank, micro, strict=True)}) > 1:
        yield Partition("rank's micro-batch", tuple(zip(rank, micro, part, strict=True)))


def _compare_ids(pair: Pair, step: int, samples: Samples, found: Evidence) -> None:
    """Say which samples only one of the trainings reads, and which several ranks read, if both know theirs."""
    nested = [] if pair.actual.ranks(step) else pair.actual.shown(step).get("ids") or []
    read = Counter(each for rank in nested for ids in rank for each in (ids if isinstance(ids, list) else [ids]))
    if not {*read} & {*samples.ids}:
        return  # or other names for the same samples
    expected = Counter(samples.ids)
    for more, less, says in (
        (expected, read, "By their ids, these samples of the reference are not read in this step"),
        (read, expected, "By their ids, these samples are read more often than in the reference, or of another step"),
    ):
        if off := [*(more - less)]:
            found.note("samples read", "others")
            found.say(f"{says}: {', '.join(map(str, off[:8]))}{', ...' * (len(off) > 8)}.")


def _outside(pair: Pair, step: int, samples: Samples, names: list[str], fit: Weights, found: Evidence) -> None:
    """Say that a gradient is not that of these samples, and whether other steps' samples explain more of it."""
    found.note("weights", "outside")
    found.say(
        f"No weights of the step's samples explain the gradient: they leave {fit.outside:.0%} of it. It is not from "
        "these samples and targets, or not from this forward pass."
    )
    actual = _column(samples, names, pair, pair.actual, step)
    residual = {}
    for other in pair.reference.steps:
        more = pair.reference.samples(other) if other != step else None
        if more and {*names} <= {*more.names} and len(more) * VALUES_PER_SAMPLE < len(actual):
            own = _column(more, names, pair, pair.actual, step)
            singular = pair.limit(SINGULAR, f"step{step}/gradients")
            residual[other] = _solve(_matrix(more, names), own, 0 * own, singular).outside
    nearest = min(residual, key=residual.__getitem__, default=None)
    if nearest is not None and residual[nearest] < OUTSIDE * fit.outside:
        found.note("samples read", "of another step")
        found.say(f"The samples of step {nearest} leave only {residual[nearest]:.0%}, with the weights of that step.")
    if touched := _touched(names, pair, step):
        found.note("samples read", "others")
        name, here, there = touched
        found.say(
            f"{name}: {here} rows have a gradient only here, {there} only in the reference: other inputs are read."
        )


def _touched(names: list[str], pair: Pair, step: int) -> tuple[str, int, int] | None:
    """Return an embedding whose rows show that other tokens were read, and how many only one training reads.

    Both must have some: a padding mask or other targets reach more rows, or fewer.
    """
    own, other = (pair.gradients(capture, f"step{step}/gradients") for capture in pair.captures)
    for name in names:
        value, expected = own(name), other(name)
        if value.dim() != 2:
            continue
        reached = [each.ne(0).any(1) for each in (value, expected)]
        if not bool(reached[1].all()):
            here, there = (int((mine & ~theirs).sum()) for mine, theirs in (reached, reached[::-1]))
            if here and there:
                return name, here, there
    return None
