"""What a model may contain under which technique: one table of rules, which models/contents.py checks.

docs/your-own.md lists them.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shardlab.errors import UserError
from shardlab.settings.types import Run

TECHNIQUES = {
    "single": "`single`",
    "dp": "`dp`",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "tensor": "`tp`",
    "pipeline": "`pp`, `mp`",
    "zero12": "ZeRO 1 and 2",
    "zero3": "ZeRO 3",
}
"""What takes a model apart or copies it: its title in the list. Context parallelism adds nothing to FSDP here, nor do
experts.
"""
EVERY = tuple(TECHNIQUES)
RANKS = EVERY[2:]
ZERO = ("zero12", "zero3")


class Rule(NamedTuple):
    """A property of models, and what the techniques make of it; they take it where the rule says nothing."""

    title: str
    refused: Mapping[str, str] = MappingProxyType({})
    """Technique: what would work, the end of a sentence that names the parameters or buffers."""
    noted: Mapping[str, str] = MappingProxyType({})
    """Technique: the same where it trains, but what it computes is not equal to one device."""


SHOWN = 3
"""Names in a sentence."""
ONE_VALUE = "make each a vector of one value, nn.Parameter(torch.ones(1))"
OWN_SAMPLES = (
    "statistics are of each rank's own samples, so expect unequal results; set recipe.sync_batch_norm to have those of "
    "the whole batch"
)
OWN_PIECES = "statistics are of each micro-batch, so expect unequal results; use a norm of single samples"
OWN_MASKS = (
    "strategies draw other masks than one device, so expect unequal results; to compare them, set these to 0 under "
    "`model:` in the workload's file"
)
KEY = "find_unused_parameters"
FREEZE = "name these parameters in recipe.freeze"
FIND = f"set {KEY} in the strategy's entry in config/strategies.yaml"

RULES = {
    "tied_split": Rule(
        "tied parameters of a layer that the `tensor` plan splits",
        {"tensor": "leave these modules out of the `tensor` plan, untie them, or leave out tp"},
    ),
    "apart": Rule("layers that are not split into stages here", {"pipeline": "leave out pp and mp"}),
    "unsplit": Rule(
        "no tensor-parallel plan that splits layers of its blocks",
        {"tensor": "write one under `tensor:` in the workload's file, in the words of the library, or leave out tp"},
    ),
    "gathered": Rule(
        "layers between which sequences are whole, which sequence_parallel would split",
        {"tensor": "leave out sequence_parallel"},
    ),
    "whole_logits": Rule(
        "no output layer with split logits in its tensor-parallel plan",
        {"tensor": "leave out loss_parallel"},
    ),
    "without_experts": Rule("no experts that ep could split", {"fsdp": "leave out ep"}),
    "uneven_experts": Rule(
        "a number of experts that ep does not divide", {"fsdp": "choose an ep that divides it, or leave out ep"}
    ),
    "indivisible": Rule(
        "heads that tp does not divide",
        {"tensor": "choose a degree that divides them, or leave out tp"},
    ),
    "scalar": Rule("parameters without dimensions", dict.fromkeys(("fsdp", *ZERO), ONE_VALUE)),
    "empty": Rule(
        "parameters of 0 values", {"zero3": "DeepSpeed cannot gather these; make them None, or leave out ZeRO 3"}
    ),
    "complex": Rule(
        "complex parameters",
        dict.fromkeys(EVERY, "make pairs of real numbers the parameter, with torch.view_as_complex in forward"),
    ),
    "mixed": Rule(
        "trained parameters of another dtype than recipe.dtype",
        dict.fromkeys(ZERO, "DeepSpeed has one dtype; leave out DeepSpeed"),
    ),
    "mixed_in_module": Rule(
        "trained parameters of several dtypes in one module, or of another one in the model itself",
        {"fsdp": "FSDP reduces one dtype at a time; give those of another to a submodule, or leave out FSDP"},
    ),
    "made_unsaved": Rule(
        "other values made from parameters in the constructor",
        dict.fromkeys(
            EVERY,
            "the constructor reads a weight, and weights are drawn later; compute these in forward, or register "
            "persistent buffers",
        ),
    ),
    "hooked": Rule(
        "hooks on parameters",
        dict.fromkeys(EVERY, "engines replace parameters with their hooks; compute it in forward"),
    ),
    "sparse": Rule(
        "embeddings with sparse gradients",
        dict.fromkeys(EVERY, "the optimizers take dense gradients; leave out sparse=True"),
    ),
    "changing": Rule(
        "values that a forward pass writes, besides the statistics of batch norm",
        dict.fromkeys(EVERY, "ranks and micro-batches would each have their own; compute these from the inputs"),
    ),
    "outside": Rule(
        "parameters of a module of `blocks` that are used outside of its forward",
        {"fsdp": "FSDP gathers them only there; leave the module out of `blocks`, or leave out FSDP"},
    ),
    "unused": Rule(
        "parameters that the loss never depends on",
        {"ddp": f"{FIND}, or {FREEZE}"} | dict.fromkeys(ZERO, f"DeepSpeed would decay them; {FREEZE}"),
    ),
    "unused_sometimes": Rule(
        "parameters that the loss depends on in some steps or for some samples only",
        {"ddp": FIND, "fsdp": f"FSDP waits for their gradients or decays them; use DDP with {KEY}"}
        | dict.fromkeys(ZERO, f"DeepSpeed waits for their gradients or decays them; use DDP with {KEY}"),
    ),
    "left_out": Rule(
        "layers that are left out at random",
        dict.fromkeys(RANKS, "each rank would leave out others; set these to 0 under `model:` in the workload's file"),
    ),
    "mixes": Rule(
        "batch norm",
        noted={"pipeline": OWN_PIECES} | dict.fromkeys(("dp", "ddp", "fsdp", *ZERO), OWN_SAMPLES),
    ),
    "random": Rule("dropout, or other random numbers in training", noted=dict.fromkeys(EVERY[1:], OWN_MASKS)),
}
"""Property: its rule."""


LOOKED_AT = {"engine", "engine_config", "mesh", "nodes", "ranks_per_node", "devices_per_rank", "options"}
"""Settings of a run that the rules depend on, besides those that all runs of a workload share."""


def techniques(run: Run) -> tuple[str, ...]:
    """Return the techniques of a run's strategy that have rules."""
    if run.zero_stage is not None:
        return ("zero3" if run.zero_stage == 3 else "zero12",)
    if run.options.single_process:
        return ({"dp": "dp", "mp": "pipeline"}[run.options.single_process],)
    return tuple(name for name in run.mesh.techniques if name in TECHNIQUES) or ("single",)


def check_properties(run: Run, properties: Mapping[str, list[str]]) -> None:
    """Check that a run's strategy takes a model with these properties (property: names).

    Raises:
        UserError: it does not; names what is in the way, and what would work.
    """
    if sentence := refusal(run, properties):
        raise UserError(f"{run.strategy} x {run.workload}: {sentence}")


def refusal(run: Run, properties: Mapping[str, list[str]]) -> str | None:
    """Return a sentence on why a strategy does not take a model with these properties."""
    for key, names in properties.items():
        for technique in techniques(run):
            remedy = RULES[key].refused.get(technique)
            if remedy and not (KEY in remedy and getattr(run.options, KEY) and run.engine == "torch"):
                return f"model {run.model.name} has {_named(key, names)}; {remedy}."
    return None


def notes(run: Run, properties: Mapping[str, list[str]]) -> list[str]:
    """Return a sentence for each property with which a strategy trains, but not the same model as one device."""
    found = []
    for key, names in properties.items():
        for technique in techniques(run):
            remedy = RULES[key].noted.get(technique)
            if remedy == OWN_SAMPLES and run.recipe.sync_batch_norm and technique != "dp":
                remedy = OWN_PIECES if run.recipe.gradient_accumulation_steps > 1 else None
            if remedy:
                found.append(f"model {run.model.name} has {_named(key, names)}; {remedy}.")
    return [*dict.fromkeys(found)]


def _named(key: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{RULES[key].title} ({', '.join(names[:SHOWN])}{more})"


def reduced(runs: Iterable[Run]) -> str:
    """Return as JSON what the rules look at of some runs, one of those that are alike: {strategy: settings}."""
    kept: dict[str, dict[str, Any]] = {}
    for run in runs:
        settings = run.model_dump(mode="json", include=LOOKED_AT, exclude_defaults=True)
        if run.zero_stage is not None:
            settings["engine_config"] = {"zero_optimization": {"stage": run.zero_stage}}
        if settings not in kept.values():
            kept[run.strategy] = settings
    return json.dumps(kept)


def listed() -> str:
    """Format the rules as a Markdown list: what a model may not contain, by the techniques that refuse it."""
    found: dict[tuple[str, str], list[str]] = {}
    for rule in RULES.values():
        for outcome, sentences in (("Refused", rule.refused), ("Unequal", rule.noted)):
            under = [TECHNIQUES[name] for name in EVERY if name in sentences]
            if under:
                places = "every strategy" if len(under) == len(EVERY) else ", ".join(under)
                found.setdefault((outcome, places), []).append(rule.title)
    return "\n".join(f"- {outcome} under {places}: {'; '.join(titles)}." for (outcome, places), titles in found.items())
