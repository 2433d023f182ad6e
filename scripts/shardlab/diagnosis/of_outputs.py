"""How what ranks read, and what their modules return, differs: at which samples, positions and features."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shardlab.diagnosis import patterns
from shardlab.diagnosis.outputs import Where
from shardlab.diagnosis.pair import Pair, Stage

if TYPE_CHECKING:
    from shardlab.diagnosis.evidence import Evidence


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
    """Note how the values differ: a factor, a constant for each feature, shifted, zeros at other places, permuted."""
    actual = torch.cat([value.flatten() for value, _ in where.values])
    expected = torch.cat([value.flatten() for _, value in where.values])
    if not bool(torch.isfinite(actual).all()):
        found.note("pattern", "nan")
        return
    fit = patterns.factor(actual, expected)
    affine = _affine(actual, expected, pair.fits)
    row, (value, other) = stage.wrong[0], where.values[0]
    module = row.module
    if stage.kind == "batch":
        _batch(value, other, found)
    if fit.is_factor(pair.fits):
        found.note("pattern", "factor")
        found.say(f"The values are {fit.coefficients[0]:.6g} times the reference's.")
    elif stage.kind == "batch" and affine is not None:
        found.note("pattern", "scaled")
        found.say(f"The values are {affine[0]:.6g} times the reference's plus {affine[1]:.6g}.")
    elif (times := _bias(pair, module, value - other)) is not None:
        found.note("pattern", "bias")
        found.say(f"In each row, the difference is {times:.4g} times {module}.bias.")
    elif _other_zeros(value, other):
        found.note("pattern", "zeros")
        found.say("Zeros are in different places.")
    elif patterns.is_permuted(value, other, row.limit * float(other.abs().max())):
        found.note("pattern", "permuted")
        found.say("The rows are the reference's in a different order.")
    else:
        found.note("pattern", "none")


def _affine(actual: Tensor, expected: Tensor, fits: float) -> tuple[float, float] | None:
    ones = torch.ones_like(expected)
    fit = patterns.combination(["it"], lambda _: actual - expected, [lambda _: expected, lambda _: ones])
    return (1 + fit.coefficients[0], fit.coefficients[1]) if fit.rest < fits else None


def _bias(pair: Pair, module: str, off: Tensor) -> float | None:
    """Return how many times too often a module's bias was added; None if that is not the difference."""
    initial = pair.reference.tensors("initial")
    if f"{module}.bias" not in initial:
        return None
    bias = initial[f"{module}.bias"].double()
    if bias.shape[-1] != off.shape[-1]:
        return None
    fit = patterns.factor(off, bias.expand_as(off))
    return fit.coefficients[0] if fit.rest < pair.fits else None


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
