"""How what ranks read, and what their modules return, differs: at which samples, positions and features."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from traindiff import patterns
from traindiff.outputs import Where, distance
from traindiff.pair import LIMITS, Pair, Stage

if TYPE_CHECKING:
    from traindiff.evidence import Evidence


def look_at_outputs(pair: Pair, stage: Stage, found: "Evidence") -> None:
    """Look at the first output, or part of the batch, that differs."""
    row = stage.wrong[0]
    where: Where | None = row.where
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
        _last_equal(stage, found)
    else:
        found.note("name", row.name.split(" ")[1])
    _places(pair, stage, where, found)
    _values(pair, stage, where, found)


def _last_equal(stage: Stage, found: "Evidence") -> None:
    """Say which module is the last one before it."""
    if stage.before:
        found.say(f"The previous output, that of {stage.before.module or 'the model'}, is equal.")


def _places(pair: Pair, stage: Stage, where: Where, found: "Evidence") -> None:
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


def _values(pair: Pair, stage: Stage, where: Where, found: "Evidence") -> None:
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
    elif bias.rest < pair.fits:
        found.note("pattern", "bias" if bias.coefficients[0] > 0 else "bias left out")
        found.say(
            f"In each row that differs, the difference is {bias.coefficients[0]:.4g} times {row.module}.bias (this "
            f"leaves {bias.rest:.1g} of it)."
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
        if math.isfinite(bias.rest):
            found.exclude(f"a multiple of {row.module}.bias", bias.rest)
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
    return (1 + fit.coefficients[0], fit.coefficients[1]) if fit.rest < fits else None


def _bias(pair: Pair, module: str, wrong: list[tuple[Tensor, Tensor]], limit: float) -> patterns.Fit:
    """Return how many times too often a module's bias was added in the rows that differ."""
    initial = pair.reference.tensors("initial")
    name = f"{module}.bias"
    if name not in initial or initial.shape(name)[-1] != wrong[0][0].shape[-1]:
        return patterns.Fit([float("nan")], float("inf"))
    off = torch.cat([(value - other).flatten(0, -2) for value, other in wrong])
    off = off[(off.abs() > limit).any(1)]
    return patterns.multiple([name], lambda _: off, lambda _: initial[name].double().expand_as(off))


def _batch(value: Tensor, other: Tensor, found: "Evidence") -> None:
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
