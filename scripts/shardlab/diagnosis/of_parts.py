"""Which samples, and which parts of their sequences, a gradient is the sum of."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from shardlab.diagnosis import patterns
from shardlab.diagnosis.pair import Pair

if TYPE_CHECKING:
    from shardlab.diagnosis.evidence import Evidence

SAME = 1e-3
"""Largest difference of coefficients that are the same."""


def fit_parts(pair: Pair, names: list[str], actual: Callable[[str], Tensor], found: "Evidence", fits: float) -> bool:
    """Explain a first step's gradient by those of its samples; return whether that holds."""
    parts = pair.reference.parts
    if not parts or any(name not in next(iter(parts.values())) for name in names):
        return False
    fit = patterns.combination(names, actual, [each.__getitem__ for each in parts.values()])
    if not fit.rest < fits:
        return False
    times = dict(zip(parts, fit.coefficients, strict=True))
    if max(times.values()) - min(times.values()) < SAME:
        return False
    found.note("pattern", "parts")
    by_rank, by_micro, by_part = _groupings(pair, times)
    for name, groups in (("rank", by_rank), ("micro-batch", by_micro), ("part", by_part)):
        if len(groups) > 1 and all(max(values) - min(values) < SAME for values in groups.values()):
            means = {key: sum(values) / len(values) for key, values in groups.items()}
            alone = [key for key, value in means.items() if abs(value) > SAME]
            found.note("parts", f"one {name}" if len(alone) == 1 else f"by {name}")
            listed = ", ".join(f"{value:.4g} x {_NAMES[name]} {key}" for key, value in means.items())
            found.say(f"The gradient is this sum of the gradients of each {_NAMES[name]}: {listed}.")
            return True
    found.note("parts", "by sample")
    zero = [sample for (sample, _), value in times.items() if abs(value) < SAME]
    more = {sample: value for (sample, _), value in times.items() if value > 1 + SAME}
    found.note("parts", *["dropped samples"] * bool(zero), *["doubled samples"] * bool(more))
    listed = ", ".join(f"{value:.4g} x sample {sample}" for (sample, _), value in [*times.items()][:16])
    found.say(f"The gradient is this sum of the gradients of each sample: {listed}.")
    return True


_NAMES = {"rank": "data-parallel rank", "micro-batch": "micro-batch", "part": "sequence part"}


def _groupings(pair: Pair, times: dict[tuple[int, int], float]) -> list[dict[int, list[float]]]:
    """Return the coefficients by data-parallel rank, by micro-batch and by part of the sequence."""
    rank_of: dict[int, int] = {}
    micro_of: dict[int, int] = {}
    for rank in pair.actual.ranks(pair.steps[0]):
        for micro in range(len(rank.notes["indices"])):
            for sample in rank.samples(micro):
                rank_of[sample], micro_of[sample] = rank.about["data_rank"], micro
    groups: list[dict[int, list[float]]] = [{}, {}, {}]
    for (sample, part), value in times.items():
        for group, key in zip(groups, (rank_of.get(sample, -1), micro_of.get(sample, -1), part), strict=True):
            group.setdefault(key, []).append(value)
    return groups
