"""What a factor between the tensors of two trainings can be: a number of ranks or micro-batches, a loss scale"""

import math
from fractions import Fraction
from itertools import combinations

from traindiff import patterns
from traindiff.evidence import Evidence
from traindiff.pair import Pair, Stage

SMALLEST_SCALE = 2**8
"""From this power of two on a factor is a loss scale, unless it is one of the given numbers."""
DENOMINATOR = 32
"""Largest denominator of a fraction that a page shows."""
WINDOW = 64
"""Most micro-batches of which a factor can be a part."""


def look_at_factors(pair: Pair, stage: Stage, factors: dict[str, float], found: Evidence, residual: float) -> None:
    """Say by which factor each tensor differs, if one fits it; ``residual``: the most that one leaves."""
    low, high = min(factors.values()), max(factors.values())
    times = (low + high) / 2
    found.say(f"A factor explains each affected tensor: this leaves at most {residual:.1g} of the difference.")
    if high - low <= min(pair.near * abs(times), pair.fits * abs(times - 1)):
        found.note("pattern", "factor")
        name_factor(pair, times, found, "Each affected tensor")
        if stage.kind == "update":
            _of_updates(pair, stage, [*factors], times, found)
        return
    keys = {name.rpartition("//")[2] for name in factors if "//" in name}
    own = {key: [times for name, times in factors.items() if name.endswith(f"//{key}")] for key in keys}
    if {*keys} == {"exp_avg", "exp_avg_sq"} and _squares(own["exp_avg"], own["exp_avg_sq"], pair.near):
        found.note("pattern", "gradient's factor")
        name_factor(pair, own["exp_avg"][0], found, "The gradient that went into the optimizer state")
        return
    found.note("pattern", "factors")
    distinct: list[float] = []
    for each in sorted(factors.values()):
        if not distinct or each - distinct[-1] > pair.near * abs(each):
            distinct.append(each)
    if len(distinct) <= max(2, len(factors) // 4):
        found.note("pattern", "few factors")
    listed = ", ".join(f"{name} {times:.4g}" for name, times in [*factors.items()][:4])
    found.say(f"The affected tensors have different factors: {listed}.")


def _squares(first: list[float], second: list[float], near: float) -> bool:
    """Return whether all of the second are the square of all of the first: moments of a scaled gradient."""
    return all(abs(times - first[0]) <= near * abs(first[0]) for times in first) and all(
        abs(times - first[0] ** 2) <= near * first[0] ** 2 for times in second
    )


def _of_updates(pair: Pair, stage: Stage, names: list[str], times: float, found: Evidence) -> None:
    """Say by which factor the updates of the other steps differ, and whether the weights are an average, or the
    learning rates that the trainings say have this ratio.
    """
    rate, other = (capture.shown(stage.step).get("learning_rate") for capture in pair.captures)
    if isinstance(rate, float) and isinstance(other, float) and other and rate != other:
        found.note("rate", "explains" if abs(rate / other / times - 1) <= pair.near else "another")
    steps = [step for step in pair.steps if all(capture.has_update(step) for capture in pair.captures)][:8]
    shown = []
    for step in steps:
        fit = patterns.combination(names, pair.actual.updates(step), [pair.reference.updates(step)])
        shown.append(
            f"step {step} {_number(fit.coefficients[0])}" + (f" (leaves {fit.residual:.0e})" * (fit.residual > 1e-3))
        )
    if len(shown) > 1:
        found.say(f"The updates' best factor: {', '.join(shown)}; after the first difference the weights differ, too.")
    later = [step for step in steps if step > stage.step]
    if not 0 < times < 1:
        found.note("average", "no")
    elif stage.step != pair.steps[0]:
        found.note("average", "no")  # of the steps before the first one that differs it would be one, too
    elif not later:
        found.note("average", "unknown")
    else:
        is_average = _is_average(pair, later[0], names, times)
        found.note("average", "yes" if is_average else "no")
        if is_average:
            found.say(f"The weights are {1 - times:.6g} times those before plus {times:.6g} times the reference's.")


def _is_average(pair: Pair, step: int, names: list[str], part: float) -> bool:
    """Return whether an update moves the weights by a part of their distance from the reference's."""
    before, after = pair.actual.tensors(f"step{step - 1}/weights"), pair.reference.tensors(f"step{step}/weights")
    fit = patterns.combination(
        names, pair.actual.updates(step), [lambda name: after[name].double() - before[name].double()]
    )
    return fit.residual < pair.fits and abs(fit.coefficients[0] - part) <= pair.fits * part


def _plain(pair: Pair) -> dict[str, tuple[float, str]]:
    """Return what a factor can be: its name for people, its value, and its kind for causes."""
    found: dict[str, tuple[float, str]] = {}
    for name, (value, kind) in _given(pair).items():
        found |= {name: (value, kind), f"1 / {name}": (1 / value, f"1/{kind}")}
    return found


def _powers(pair: Pair) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for name, (value, kind) in _given(pair).items():
        found |= {
            f"the square of {name}": (value**2, f"{kind}^2"),
            f"the square root of {name}": (value**0.5, f"root {kind}"),
        }
    return found


def _given(pair: Pair) -> dict[str, tuple[float, str]]:
    """Return the numbers above 1 that are known of a training, and their kinds."""
    about = pair.actual.about
    mesh = about.get("mesh", {})
    numbers = {f"the number of ranks along {axis}": (float(degree), "ranks") for axis, degree in mesh.items()}
    shown = pair.actual.shown(pair.steps[0])
    world = len(about.get("ranks", [])) or (math.prod(mesh.values()) if mesh else shown.get("world_size", 1))
    numbers |= {"the total number of ranks": (float(world), "ranks")}
    micro_batches = about.get("accumulation") or shown.get("micro_batches") or 1
    numbers |= {"the number of micro-batches": (float(micro_batches), "microbatches")}
    numbers |= {"the pipeline's number of micro-batches": (float(about.get("chunks") or 1), "microbatches")}
    return {name: each for name, each in numbers.items() if each[0] > 1}


def _composed(pair: Pair) -> dict[str, tuple[float, str]]:
    """Return products and quotients of the given numbers, and parts of a window of micro-batches."""
    found: dict[str, tuple[float, str]] = {}
    given = _given(pair)
    for (name, (value, _)), (other, (number, _)) in combinations(given.items(), 2):
        both = f"{name} times {other}"
        found |= {both: (value * number, "product"), f"1 / ({both})": (1 / value / number, "product")}
        found |= {f"{name} / {other}": (value / number, "product"), f"{other} / {name}": (number / value, "product")}
    for name, (value, kind) in given.items():
        if kind == "microbatches" and value <= WINDOW:
            found |= {f"{part} / {name}": (part / value, "window") for part in range(2, int(value))}
    return {name: each for name, each in found.items() if each[0] != 1}


def name_factor(pair: Pair, times: float, found: Evidence, what: str) -> None:
    """Say what a factor can be."""
    named: list[tuple[str, str]] = []
    # The simplest meaning first: 4 is the number of 4 micro-batches rather than the square of 2 ranks.
    for meanings, near in (
        (_plain(pair), pair.near),
        (_powers(pair), pair.near),
        (_composed(pair), min(pair.near, 1e-3)),
    ):
        named = named or [(name, kind) for name, (value, kind) in meanings.items() if abs(times - value) < near * value]
    scale = round(math.log2(times)) if times > 0 else 0
    if not named and 2 ** abs(scale) >= SMALLEST_SCALE and abs(times / 2.0**scale - 1) < 1e-3:
        named = [(f"2^{scale}, as of a loss scale", "loss scale")]
    found.note("factor", *(kind for _, kind in named) if named else ("unnamed",))
    means = " or ".join(name for name, _ in named)
    shown = f"1 {'-' if times < 1 else '+'} {abs(times - 1):.1g}" if f"{times:.6g}" == "1" else _number(times)
    found.say(f"{what} is {shown} times the reference's." + (f" The factor is {means}." if means else ""))


def _number(times: float) -> str:
    """Return a factor as text, with the fraction that it is."""
    fraction = Fraction(times).limit_denominator(DENOMINATOR) if math.isfinite(times) else Fraction(0)
    is_fraction = fraction.denominator > 1 and abs(float(fraction) - times) < 5e-5 * abs(times)
    is_short = f"{times:.6g}" == f"{times:.2g}"
    return f"{times:.6g}" + (f" ({fraction})" if is_fraction and not is_short else "")
