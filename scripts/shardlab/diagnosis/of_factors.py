"""Meanings of a factor between the tensors of two trainings: a number of ranks, of micro-batches, or its inverse."""

import math
from typing import TYPE_CHECKING

from shardlab.diagnosis.pair import Pair

if TYPE_CHECKING:
    from shardlab.diagnosis.evidence import Evidence


def look_at_factors(pair: Pair, factors: dict[str, float], found: "Evidence") -> None:
    """Say by which factor each tensor differs, if one fits it."""
    low, high = min(factors.values()), max(factors.values())
    if abs(high - low) <= max(1e-3, pair.fits) * max(abs(low), abs(high)):
        found.note("pattern", "factor")
        name_factor(pair, (low + high) / 2, found, "Each affected tensor")
        return
    keys = {name.rpartition("//")[2] for name in factors if "//" in name}
    own = {key: [times for name, times in factors.items() if name.endswith(f"//{key}")] for key in keys}
    if {*keys} == {"exp_avg", "exp_avg_sq"} and _squares(own["exp_avg"], own["exp_avg_sq"], pair.fits):
        found.note("pattern", "gradient's factor")
        name_factor(pair, own["exp_avg"][0], found, "The gradient that went into the optimizer state")
        return
    found.note("pattern", "factors")
    listed = ", ".join(f"{name} {times:.4g}" for name, times in [*factors.items()][:4])
    found.say(f"The affected tensors have different factors: {listed}.")


def _squares(first: list[float], second: list[float], fits: float) -> bool:
    """Return whether all of the second are the square of all of the first: moments of a scaled gradient."""
    near = max(1e-3, fits)
    return all(abs(times - first[0]) <= near * abs(first[0]) for times in first) and all(
        abs(times - first[0] ** 2) <= near * first[0] ** 2 for times in second
    )


def candidates(pair: Pair) -> dict[str, tuple[float, str]]:
    """Return what a factor can be: its name for people, its value, and its kind for causes."""
    about = pair.actual.about
    mesh = about.get("mesh", {})
    numbers = {f"the number of ranks along {axis}": (float(degree), "ranks") for axis, degree in mesh.items()}
    world = len(about.get("ranks", [])) or math.prod(mesh.values())
    numbers |= {"the total number of ranks": (float(world), "ranks")}
    numbers |= {"the number of micro-batches": (float(about.get("accumulation") or 1), "microbatches")}
    numbers |= {"the pipeline's number of micro-batches": (float(about.get("chunks") or 1), "microbatches")}
    found: dict[str, tuple[float, str]] = {}
    for name, (value, kind) in numbers.items():
        if value > 1:
            found |= {name: (value, kind), f"1 / {name}": (1 / value, f"1/{kind}")}
            found |= {
                f"the square of {name}": (value**2, f"{kind}^2"),
                f"the square root of {name}": (value**0.5, f"root {kind}"),
            }
    return found


def name_factor(pair: Pair, times: float, found: "Evidence", what: str) -> None:
    """Say what a factor can be."""
    near = max(1e-3, pair.fits)
    named = [(name, kind) for name, (value, kind) in candidates(pair).items() if abs(times - value) < near * value]
    found.note("factor", *(kind for _, kind in named))
    found.note("factor", "above 1" if times > 1 else "below 1")
    found.note("by", *(name for name, _ in named))
    means = " or ".join(name for name, _ in named)
    found.say(f"{what} is {times:.6g} times the reference's." + (f" The factor is {means}." if means else ""))
