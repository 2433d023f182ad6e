"""What the transformers library declares of its models, for the keys that a workload's file leaves out."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from shardlab.models import named
from shardlab.models._chain import Chain
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
    if not settings.tensor:
        found["tensor"] = tensor_plan(model)
    if not settings.experts:
        found["experts"] = expert_modules(model)
    if isinstance(model, Chain) and "pipeline" in techniques(run):
        found["segments"] = len(model.segments())
    return run.model_copy(update={"model": settings.model_copy(update=found)})


def tensor_plan(model: nn.Module) -> dict[str, str]:
    """Return the library's tensor-parallel plan (pattern: style), without patterns that match nothing."""
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    return {pattern: style for pattern, style in plan.items() if named(model, pattern)}


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
