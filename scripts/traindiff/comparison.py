"""The stages of a step in the order in which they are computed, and how far two captures are apart in each."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from traindiff import outputs
from traindiff.capture_files import Capture, InputError, Tensors, same_shape
from traindiff.fit import listed
from traindiff.pair import COARSE, EPSILONS, FLOORS, LIMITS, MULTIPLE, SCALARS, UPDATES, Pair, Row, Stage, largest
from traindiff.sample_weights import counted, reads

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Names of tensors that a forward pass of PyTorch's modules changes."""


RELATIVE = 1e-3
"""Part of its value from which on a gradient's rounding decides on its update."""


def stages(pair: Pair) -> Iterator[Stage]:
    """Yield the stages of all steps that both captures have."""
    for step in pair.steps:
        for kind, rows in STAGES.items():
            if step == pair.steps[0] or kind != "initial weights":
                yield Stage(step, kind, [*rows(pair, step)])
    yield Stage(-1, "restored checkpoint", [*_restored(pair)])
    yield Stage(-1, "evaluation", [*_numbers(pair, -1, "evaluated")])


def compare(
    names: Iterable[str],
    pair: Pair,
    file: str,
    read: Callable[[Capture], Callable[[str], Tensor]],
    limit: Callable[[str], float],
    slack: Callable[[str], float] = lambda name: 0.0,
) -> Iterator[Row]:
    """Yield a row per name of tensors that ``read`` returns of each capture, of a ``file``; ``limit``: see ``Row``, at
    least.

    ``slack``: by how much values may differ in any case, by name.
    """
    names = [*names]
    actual, reference = read(pair.actual), read(pair.reference)
    twin = read(pair.twin) if pair.twin else None
    differences: dict[str, tuple[float, float, float]] = {}
    for name in names:
        value, expected = actual(name).double(), reference(name).double()
        same_shape(name, (value, pair.actual.folder), (expected, pair.reference.folder))
        of_twin = 0.0
        if twin and pair.twin:
            moved = twin(name).double()
            same_shape(name, (moved, pair.twin.folder), (expected, pair.reference.folder))
            of_twin = _finite(largest(moved - expected))
        differences[name] = largest(outputs.distance(value, expected)), largest(expected[expected.isfinite()]), of_twin
    scale = max((size for _, size, _ in differences.values()), default=0.0)
    # Where the reference has nothing but zeros, such as updates of a learning rate of 0, any other value differs.
    scale = scale or max((_finite(difference) for difference, *_ in differences.values()), default=0.0)
    floor = pair.limit(FLOORS, file)
    for name, (difference, size, of_twin) in differences.items():
        unit = max(size, floor * scale) or 1.0
        yield Row(name, difference / unit, max(limit(name), MULTIPLE * of_twin / unit, slack(name) / unit))


def _finite(value: float) -> float:
    """Return a number, but 0 for one that is not finite: as a scale or a twin's distance it would excuse anything."""
    return value if math.isfinite(value) else 0.0


def _numbers(pair: Pair, step: int, *keys: str) -> Iterator[Row]:
    """Compare numbers of a step, or of a dictionary of what comes after the last."""
    found = []
    for capture in (pair.actual, pair.reference, pair.twin or pair.reference):
        about = capture.about if step < 0 else dict(enumerate(capture.about.get("steps", []))).get(step, {})
        values = {key: about.get(key) for key in keys}
        found.append(values.get("evaluated") or {} if step < 0 else values)
    for key, value in found[0].items():
        expected, twin = found[1].get(key), found[2].get(key)
        slack = MULTIPLE * abs((twin or expected) - expected) / abs(expected) if expected else 0.0
        yield from _number(key, value, expected, max(pair.limit(SCALARS), slack))


def _number(name: str, value: Any, expected: Any, limit: float) -> Iterator[Row]:
    """Compare two numbers, if there are two; both may be the same infinity, or not a number."""
    if isinstance(value, int | float) and isinstance(expected, int | float):
        is_same = value == expected or (value != value and expected != expected)
        difference = 0.0 if is_same else abs(value - expected) / (abs(expected) or 1.0)
        yield Row(name, difference, limit, f"{value:.10g}, not {expected:.10g}")


def _reported(pair: Pair, step: int) -> Iterator[Row]:
    """Compare the loss that this training reports with the one that the reference reports, or has."""
    own, other = (capture.shown(step) for capture in pair.captures)
    expected = other.get("reported_loss", other.get("loss"))
    # A trainer may add up losses in float32, whatever it trains in.
    yield from _number("reported loss", own.get("reported_loss"), expected, max(pair.limit(SCALARS), SCALARS["F32"]))


def _schedule(pair: Pair, step: int) -> Iterator[Row]:
    own, other = (capture.about.get("steps_in_all") for capture in pair.captures)
    if step == 0 and own and other:
        yield Row("steps", float(own != other), 0.5, f"{own}, not {other}")
    yield from _numbers(pair, step, "samples", "targets", "learning_rate")


def _samples(pair: Pair, step: int) -> Iterator[Row]:
    """Compare which samples the step reads, if both say so by the same kind of names."""
    found = [reads(pair, side, step) for side in (0, 1)]
    kinds = [{type(sample) for sample, *_ in each} for each in found]
    hashed = [capture.shown(step).get("hashed") for capture in pair.captures]
    if not all(found) or kinds[0].isdisjoint(kinds[1]) or (None not in hashed and hashed[0] != hashed[1]):
        return
    own, expected = (counted(pair, side, step) for side in (0, 1))
    note = "; ".join(
        what + listed((f"{count} times " * (count > 1) + f"{name}" for name, count in each.items()), 8)
        for what, each in (("not read: ", expected - own), ("read instead, or more often: ", own - expected))
        if each
    )
    yield Row("samples", float(own != expected), 0.5, note)


def _gradients(kind: str) -> Callable[[Pair, int], Iterator[Row]]:
    def rows(pair: Pair, step: int) -> Iterator[Row]:
        name = f"step{step}/{kind}"
        files = [capture.tensors(name) for capture in pair.captures]
        if all(files):
            own, usual = files
            if not (own.names and usual.names and ({*own.names} <= {*usual.names} or {*own.names} >= {*usual.names})):
                _same_names(pair, name)  # else, parameters of one training have no gradient
            yield from _whole(pair, name, [*dict.fromkeys([*usual.names, *own.names])])

    return rows


def _states(pair: Pair, step: int) -> Iterator[Row]:
    """Compare an optimizer's tensors: a moment has the rounding of all gradients that it sums, also if they cancel.

    A step adds to its error no more than ``limit`` of its gradient's part, which is that of a difference of moments.
    """
    file = f"step{step}/optimizer"
    own, usual = (capture.tensors(file) for capture in pair.captures)
    if not own or not usual or (not (own.names and usual.names) and _has_updates(pair, step)):
        return  # a state that is kept elsewhere; or none, as without momentum: then updates differ
    if {_parameter(each) for each in own.names}.isdisjoint(map(_parameter, usual.names)):
        _same_names(pair, file)
    for name in dict.fromkeys([*usual.names, *own.names]):
        if name not in own or name not in usual:
            yield Row(name, math.inf, 1.0, "missing in one of the two")
    so_far = [pair.reference.tensors(f"step{each}/optimizer") for each in pair.reference.steps if each <= step]
    limits = pair.limits(LIMITS, file)

    def slack(name: str) -> float:
        return limits(name) * sum(_finite(largest(each[name].double())) for each in so_far if name in each)

    names = [name for name in usual.names if name in own]
    yield from compare(names, pair, file, lambda capture: capture.tensors(file).__getitem__, limits, slack)


def _parameter(name: str) -> str:
    return name.split("//")[0]


def _update(pair: Pair, step: int) -> Iterator[Row]:
    if not _has_updates(pair, step):
        return
    name = f"step{step}/weights"
    _same_names(pair, name)
    after = pair.reference.tensors(name)
    limits, epsilons = pair.limits(LIMITS, name), pair.limits(EPSILONS, name)
    low = [bool(capture.tensors(name).dtypes & COARSE) for capture in pair.captures]
    lost = low == [True, False]
    for row in compare(
        _parameters(pair, step),
        pair,
        name,
        lambda capture: capture.updates(step),
        lambda each: max(UPDATES, limits(each)),
        # What weights in low precision lose of an update, if the reference's are not, is no rounding.
        lambda each: 4 * (EPSILONS["F32"] if lost else epsilons(each)) * largest(after[each].double()),
    ):
        yield _sure(pair, step, row) if row.differs else row


def _has_updates(pair: Pair, step: int) -> bool:
    return all(capture.has_update(step) for capture in pair.captures)


def _sure(pair: Pair, step: int, row: Row) -> Row:
    """Return the row of an update without the values whose gradients, though equal, are mostly rounding: Adam makes
    whole updates of the signs of such gradients.
    """
    unsure: Tensor | None = None
    for each in (each for each in pair.reference.steps if each <= step):
        files = [capture.tensors(f"step{each}/gradients") for capture in pair.captures]
        if not all(row.name in file for file in files):
            return row
        own, other = (file[row.name].double() for file in files)
        name = f"step{each}/gradients"
        limit, floor = pair.limits(LIMITS, name)(row.name), pair.limit(FLOORS, name)
        if not largest(own - other) <= limit * max(largest(other), floor * _scale(files[1])):
            return row  # they differ by more than rounding
        near = max(RELATIVE, limit / 2)
        unsure = (unsure if unsure is not None else own.ne(own)) | ((own - other).abs() > near * other.abs())
    off = pair.actual.updates(step)(row.name) - pair.reference.updates(step)(row.name)
    if unsure is None or unsure.shape != off.shape or not math.isfinite(row.difference):
        return row
    return replace(row, difference=row.difference * largest(off.masked_fill(unsure, 0.0)) / largest(off))


@lru_cache(maxsize=8)
def _scale(file: Tensors) -> float:
    """Return the largest value of a file of tensors."""
    return max(_finite(largest(file[name].double())) for name in file.names)


def _weights(pair: Pair, step: int) -> Iterator[Row]:
    """Compare weights of which no update is known."""
    name = f"step{step}/weights"
    if all(capture.tensors(name) for capture in pair.captures) and not _has_updates(pair, step):
        _same_names(pair, name)
        yield from _whole(pair, name, _parameters(pair, step))


def _buffers(pair: Pair, step: int) -> Iterator[Row]:
    name = f"step{step}/weights"
    after = [capture.tensors(name) for capture in pair.captures]
    if all(after):
        parameters = {*_parameters(pair, step)}
        yield from _whole(pair, name, [each for each in after[1].names if each not in parameters])


def _whole(pair: Pair, name: str, names: list[str]) -> Iterator[Row]:
    """Compare tensors of a file of both."""
    yield from compare(names, pair, name, lambda capture: pair.gradients(capture, name), pair.limits(LIMITS, name))


def _same_names(pair: Pair, file: str) -> None:
    """Raise an InputError if a file of both does not have the same names."""
    found = [capture.tensors(file).names for capture in pair.captures]
    only = [[name for name in names if name not in others] for names, others in (found, found[::-1])]
    if only[0] or only[1]:
        listed = " and ".join(
            f"{len(names)} only in {capture.folder} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"
            for names, capture in zip(only, pair.captures, strict=True)
            if names
        )
        raise InputError(
            f"{file}: the names of tensors differ, {listed}; map them with --rename, as '^module\\.=', or leave "
            "them out (--skip)."
        )


def _parameters(pair: Pair, step: int) -> list[str]:
    """Return the names of what an optimizer updates; in a dump all weights but those that it cannot be."""
    known: list[str] | None = pair.reference.about.get("parameters")
    weights = pair.reference.tensors(f"step{step}/weights")
    return known or [
        name
        for name in weights.names
        if name.rpartition(".")[2] not in BUFFERS and not weights.dtype(name).startswith(("I", "U", "BOOL"))
    ]


def _initial(pair: Pair, step: int) -> Iterator[Row]:
    if all(capture.tensors("initial") for capture in pair.captures):
        _same_names(pair, "initial")
        names, epsilons = pair.reference.tensors("initial").names, pair.limits(EPSILONS, "initial")
        both = Pair(pair.actual, pair.reference)
        yield from compare(
            names, both, "initial", lambda capture: capture.tensors("initial").__getitem__, lambda n: 4 * epsilons(n)
        )


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
            yield Row(f"{kind} {name}", float(not same), 0.5, "differs from what was saved")


STAGES: dict[str, Callable[[Pair, int], Iterator[Row]]] = {
    "samples": _samples,
    "schedule": _schedule,
    "initial weights": _initial,
    "output": outputs.rows,
    "loss": lambda pair, step: _numbers(pair, step, "loss"),
    "gradient": _gradients("gradients"),
    "norm": lambda pair, step: _numbers(pair, step, "norm"),
    "clipped gradient": _gradients("clipped"),
    "optimizer state": _states,
    "update": _update,
    "weights": _weights,
    "buffers": _buffers,
    "reported loss": _reported,
}
"""What is compared of a step, in the order in which it is computed."""
