"""What the transformers library declares of its models, for the keys that a workload's file leaves out."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from shardlab.models import named, without_numbers
from shardlab.models._chain import Chain
from shardlab.models._tensor_plans import PLANS
from shardlab.models.weights import names_of_each
from shardlab.settings.model_rules import techniques
from shardlab.settings.types import Run


def completed(run: Run, model: nn.Module) -> Run:
    """Return the run with what its strategy needs of its model filled in, if that is one of transformers: ``blocks``,
    ``tensor``, ``experts``, and for a pipeline ``segments``.
    """
    settings = run.model
    if settings.folder is None:
        return run
    found: dict[str, Any] = {}
    if not settings.blocks:
        found["blocks"] = [f"{name}.*" for name in layer_lists(model)]
    plan = settings.tensor or tensor_plan(model)
    found["tensor"] = with_copied_heads(plan, model, run.mesh.tensor_parts)
    if not settings.experts:
        found["experts"] = expert_modules(model)
    if isinstance(model, Chain) and "pipeline" in techniques(run):
        found["segments"] = len(model.segments())
    return run.model_copy(update={"model": settings.model_copy(update=found)})


def own_forward(model: nn.Module) -> Callable[..., Any]:
    """Return the library's own forward of a model, whose first argument is the model."""
    kind: Any = next(each for each in type(model).__mro__ if each.__module__.startswith("transformers.models."))
    return kind.forward  # type: ignore[no-any-return]


def arguments(model: nn.Module) -> tuple[str, ...]:
    """Return the arguments of the library's own forward of a model."""
    return tuple(inspect.signature(own_forward(model)).parameters)


SPLIT_DIMENSIONS = {"embedding_rowwise": 0, "colwise": 0, "colwise_gather_output": 0, "colwise_rep": 0}
"""Styles that split a tied weight: the dimension. Any other leaves it whole, or cannot be tied."""


def tensor_plan(model: nn.Module) -> dict[str, str]:
    """Return the tensor-parallel plan (pattern: style) that the library declares, or this project for its model.

    Without patterns that match nothing, and those of tied weights that another module would have whole.
    """
    kind = getattr(getattr(model, "config", None), "model_type", "")
    plan: dict[str, str] = PLANS.get(kind) or getattr(model, "tp_plan", None) or {}
    plan = {pattern: style for pattern, style in plan.items() if named(model, pattern)}
    uneven = {without_numbers(name.rpartition(".")[0]) for name in split_unevenly(model, plan)}
    return {pattern: style for pattern, style in plan.items() if pattern not in uneven}


def split_unevenly(model: nn.Module, plan: dict[str, str]) -> list[str]:
    """Return the names of tied parameters that a plan splits in one module, and otherwise or not at all in another."""
    found = []
    for names in names_of_each(model.named_parameters(remove_duplicate=False)):
        styles = [plan.get(without_numbers(name.rpartition(".")[0])) for name in names]
        if len({SPLIT_DIMENSIONS.get(style or "", style) for style in styles}) > 1:
            found += names
    return found


COPIED = "replicated_kv_heads"
"""Style: layers of key and value heads that every tensor-parallel rank has whole, to compute those of its queries."""


def with_copied_heads(plan: dict[str, str], model: nn.Module, parts: int) -> dict[str, str]:
    """Return a plan for ``parts`` ranks: layers of fewer key and value heads than that are whole on each of them."""
    copied = {
        pattern
        for pattern, style in plan.items()
        if style == "colwise"
        and pattern.endswith((".k_proj", ".v_proj"))
        and _are_copied(named(model, pattern.rpartition(".")[0]), parts)
    }
    return plan | dict.fromkeys(copied, COPIED)


def _are_copied(attentions: list[Any], parts: int) -> bool:
    counts = {kv_heads(each) for each in attentions}
    few = any(count and count < parts for count in counts)
    return few and all(count and (count % parts == 0 or parts % count == 0) for count in counts)


def kv_heads(attention: Any) -> Any:
    """Return the number of key heads of the library's attention; None if it does not repeat them for its queries."""
    keys, width = getattr(attention, "k_proj", None), getattr(attention, "head_dim", None)
    if not isinstance(keys, nn.Linear) or not width or not hasattr(attention, "num_key_value_groups"):
        return None
    return keys.out_features // width


def expert_modules(model: nn.Module) -> list[str]:
    """Return the patterns of the modules whose experts the library's expert-parallel plan gives to ranks."""
    plan: dict[str, str] = getattr(model, "ep_plan", None) or {}
    dispatched = [pattern for pattern, style in plan.items() if style == "ep_dispatch_experts"]
    return [pattern for pattern in dispatched if named(model, pattern)]


def layer_lists(model: nn.Module) -> list[str]:
    """Return the names of the lists of layers: those of the classes that the library keeps on one device, or else the
    longest list.
    """
    classes = {*(getattr(model, "_no_split_modules", None) or [])}
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    named = [name for name, modules in lists if len(modules) and {*_classes(modules)} <= classes]
    return named or [name for name, _ in sorted(lists, key=lambda each: -len(each[1]))[:1]]


def _classes(modules: nn.ModuleList) -> Iterator[str]:
    return (type(module).__name__ for module in modules)
