"""Models, one per file: a plain single-device ``nn.Module`` called ``Model``, without any knowledge of ranks.

Models of the transformers library (``hf:``) come from their folder instead.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shardlab.errors import UserError, choices
from shardlab.models._chain import Absent, Chain
from shardlab.models._experts import Experts, Router
from shardlab.models.lora import attach
from shardlab.patches.torch_internals import parameters_on_meta
from shardlab.settings import registry, types


def build(settings: types.Model, task: str, dtype: torch.dtype) -> nn.Module:
    """Build the model in a dtype, without weights: parameters are on the meta device, buffers on the CPU.

    Raises:
        UserError: the model does not exist, does not accept the arguments, or reads a weight in its constructor.
    """
    model = _without_weights(settings, task)
    # nn.Module.to would take float64 tensors, too.
    known: dict[int, tuple[Tensor, Tensor]] = {}  # a buffer of two modules stays one

    def cast(value: Tensor) -> Tensor:
        return known.setdefault(id(value), (value, value.to(in_precision(value.dtype, dtype))))[1]

    model._apply(cast)  # type: ignore[no-untyped-call]
    if settings.folder and dtype == torch.float64:
        from shardlab.models._float64 import widen
        from shardlab.models.declared import layer_lists

        widen(model, [layer for name in layer_lists(model) for layer in model.get_submodule(name).children()])
    return model


def _without_weights(settings: types.Model, task: str) -> nn.Module:
    try:
        with parameters_on_meta():
            model = construct(settings, task)
    except UserError as error:
        construct(settings, task)  # if this fails, too, it says why
        raise UserError(
            f"the constructor of model {settings.name} reads a weight ({error.__cause__ or error}), but weights are "
            "drawn later; compute what depends on them in forward, or register it as a persistent buffer."
        ) from error
    if lazy := [name for name, value in model.named_parameters() if is_lazy(value)]:
        raise UserError(
            f"{lazy[0]} of model {settings.name} has no shape yet; give it the sizes of a layer that is not lazy."
        )
    memory = {value.untyped_storage()._cdata: name for name, value in model.named_parameters()}
    for name, buffer in model.named_buffers():
        if owner := buffer.is_meta and memory.get(buffer.untyped_storage()._cdata):
            raise UserError(
                f"buffer {name} of model {settings.name} is the memory of {owner}, and weights have their own after "
                f"they are drawn; read {owner} in forward, or make the buffer a clone."
            )
    _freeze(model, settings.freeze)
    for parameter in model.parameters():
        # Files and shards are contiguous, and so are the weights under every strategy.
        parameter.data = parameter.data.contiguous()
    return model


def _freeze(model: nn.Module, patterns: list[str]) -> None:
    """Freeze the parameters that the recipe names; those that the constructor has frozen stay so."""
    where = "recipe.freeze"
    names = {name for pattern in patterns for name in parameters_named(model, pattern, where)}
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    if names and not trained_names(model):
        raise UserError(f"{where} names every parameter of the model; remove {choices(patterns)}, or narrow it.")


def in_precision(kind: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """Return what a tensor of the constructor becomes in a training in ``dtype``.

    Float32, which constructors make unless told otherwise, follows the training. Everything else is what the model asks
    for: integers, bools, float64 tables, half-precision scales, complex numbers.
    """
    return dtype if kind == torch.float32 else kind


def initial_weights(settings: types.Model, task: str, dtype: torch.dtype, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the initial weights, drawn in float32 and converted to a dtype; names and order are those of ``state``.

    A model with a method ``initialize(module)`` is initialized module by module, each from the seed and its name, so
    that only one module's weights are in memory at a time: first by the module's own ``reset_parameters``, then by
    ``initialize``. Any other model is initialized as a whole by its constructor, and a pretrained one is read as a
    whole.

    Raises:
        UserError: see ``build``; or a module has no ``reset_parameters``.
    """
    model = _without_weights(settings, task)
    if settings.folder or not hasattr(model, "initialize"):
        torch.manual_seed(seed)
        for name, value in state(construct(settings, task, pretrained=settings.pretrained)).items():
            yield name, value.detach().to(in_precision(value.dtype, dtype))
        return
    names = state(model).keys()
    modules = [(name, module) for name, module in model.named_modules() if module._parameters]
    buffers = dict(model.named_buffers())
    drawn = chain.from_iterable(_draw(model, name, module, seed) for name, module in modules)
    for name in names:
        value = buffers[name] if name in buffers else next(value for key, value in drawn if key == name)
        yield name, value.to(in_precision(value.dtype, dtype))


@torch.no_grad()
def _draw(model: Any, prefix: str, module: Any, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the initial values of a module's own parameters, and release them afterwards."""
    if not hasattr(module, "reset_parameters"):
        raise UserError(f"{prefix or 'the model'} has weights but no reset_parameters to initialize them; add it.")
    digest = hashlib.sha256(f"{seed} {prefix}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:4]))
    own = dict(module.named_parameters(recurse=False))
    for name, parameter in own.items():
        empty = torch.empty_like(parameter, device="cpu")
        module._parameters[name] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    module.reset_parameters()
    model.initialize(module)
    for name, parameter in own.items():
        yield f"{prefix}.{name}".lstrip("."), module._parameters[name].detach()
        module._parameters[name] = parameter


def construct(settings: types.Model, task: str, *, pretrained: bool = False) -> nn.Module:
    """Construct the model by its class, in float32; ``pretrained``: with the weights of its folder."""
    if settings.folder is None:
        model = create(settings.name, settings.args)
    else:
        # A few seconds that only these models need.
        from shardlab.models import _transformers

        model = _transformers.create(task, settings.folder, settings.args, pretrained=pretrained)
    if settings.adapter:
        names = [name for name, layer in model.named_modules() if not isinstance(layer, Absent)]
        targets = {each: [name for name in names if _matches(name, each)] for each in settings.adapter.targets}
        attach(model, settings.adapter, targets)
    return model


def create(name: str, args: dict[str, Any]) -> nn.Module:
    """Construct the model ``scripts/shardlab/models/<name>.py``, with weights drawn in float32.

    Raises:
        UserError: the file does not exist, or the model does not accept the arguments.
    """
    registry.require("model", name)
    try:
        model: nn.Module = import_module(f"shardlab.models.{name}").Model(**args)
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(
            f"model {name} cannot be built with {args}: {error}; correct them in the workload's file."
        ) from error
    return model


LAYERS: dict[str, type[nn.Module]] = {"column": nn.Linear, "column_gather": nn.Linear, "row": nn.Linear}
LAYERS |= {"vocab": nn.Embedding, "dropout": nn.Dropout, "router": Router, "experts": Experts}
"""Key of a tensor-parallel plan: the layers that it splits."""


def check_plan(settings: types.Model, model: nn.Module) -> None:
    """Check that the workload's file describes the model correctly.

    Raises:
        UserError: a pattern of ``blocks``, ``tensor`` or ``experts`` matches nothing or another kind of layer, or the
            chain has another number of segments.
    """
    for key, patterns in (("blocks", settings.blocks), ("tensor", settings.tensor), ("experts", settings.experts)):
        for pattern in patterns:
            if not (named if settings.folder and key == "tensor" else matching)(model, pattern):
                names = [name for name, _ in model.named_modules() if name.count(".") == pattern.count(".") and name]
                raise UserError(
                    f"{key}: no submodule of model {settings.name} matches {pattern}; it has {choices(names[:20])}."
                )
    for pattern, style in settings.tensor.items() if settings.folder is None else ():
        wanted = LAYERS.get(style, nn.Module)
        if wrong := [module for module in matching(model, pattern) if not isinstance(module, wanted)]:
            raise UserError(
                f"tensor: {pattern} of model {settings.name} is a {type(wrong[0]).__name__}, and {style} splits a "
                f"{wanted.__name__}; correct the pattern or its value."
            )
    if not settings.segments:
        return
    count = len(model.segments()) if isinstance(model, Chain) else 0
    if settings.segments != count:
        raise UserError(
            f"segments: the workload's file says {settings.segments}, but the chain of model {settings.name} has "
            f"{count}; write that number (0, or no key, if it is not a chain)."
        )


def state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers under the plain model's names; tied ones once, under the first name.

    What else a module puts into its state_dict (get_extra_state) is the constructor's, and in no file.
    """
    seen: set[int] = set()
    kept = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            kept[name] = value
    return kept


def trained_names(model: nn.Module) -> list[str]:
    """Return the names in ``state`` of the parameters that are trained: not frozen ones (requires_grad False)."""
    return [name for name, value in state(model).items() if isinstance(value, nn.Parameter) and value.requires_grad]


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable values in the whole model."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def expert_parameter_count(settings: types.Model, whole: Mapping[str, Tensor]) -> int:
    """Return the number of values in the experts that ep splits."""
    patterns = settings.experts
    return sum(
        value.numel()
        for name, value in whole.items()
        if any(fnmatchcase(name.rpartition(".")[0], pattern) for pattern in patterns)
    )


def named(model: nn.Module, pattern: str) -> list[nn.Module | nn.Parameter]:
    """Return submodules and parameters that a plan of transformers names: with ``*`` for every number."""
    everything = (*model.named_modules(), *model.named_parameters(remove_duplicate=False))
    return [value for name, value in everything if without_numbers(name) == pattern]


def without_numbers(name: str) -> str:
    """Return a name as plans of transformers have it, which mean all layers of a list: layers.*.mlp."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def matching(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Return submodules whose name matches; ``layers.*`` means the children of ``layers``, not all descendants."""
    return [
        module for name, module in model.named_modules() if _matches(name, pattern) and not isinstance(module, Absent)
    ]


def parameters_named(model: nn.Module, pattern: str, where: str) -> list[str]:
    """Return the names in ``state`` of the parameters that a pattern names: a parameter's name or a module's, with all
    of its parameters; of a tied parameter, any of its names.

    Raises:
        UserError: there is none; ``where`` is the key of the pattern.
    """
    first = {id(value): name for name, value in model.named_parameters()}
    parts = [(name.split("."), id(value)) for name, value in model.named_parameters(remove_duplicate=False)]
    length = pattern.count(".") + 1
    found = {first[key]: None for name, key in parts if _matches(".".join(name[:length]), pattern)}
    if not found:
        names = dict.fromkeys(".".join(name[:length]) for name, _ in parts if len(name) >= length)
        raise UserError(
            f"{where}: {pattern} names no parameter of the model, and no module with one; it has "
            f"{choices([*names][:20] or [*first.values()][:20])}."
        )
    return [*found]


def vectors(model: nn.Module) -> list[str]:
    """Return the names in ``state`` of the parameters that are no matrices of a layer: those of fewer than two
    dimensions, and embeddings.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return [name for name, value in model.named_parameters() if value.dim() < 2 or id(value) in tables]


def matrices(model: nn.Module, experts: list[str]) -> list[str]:
    """Return the names in ``state`` of the parameters that are matrices of a layer, no embeddings, or stacks of
    such: of experts, also those of a library's model that the patterns ``experts`` name.
    """
    modules: list[nn.Module] = [module for module in model.modules() if isinstance(module, Experts)]
    modules += [module for pattern in experts for module in matching(model, pattern)]
    stacks = {id(value) for module in modules for value in module.parameters()}
    others = {*vectors(model)}
    return [
        name
        for name, value in model.named_parameters()
        if name not in others and value.dim() == (3 if id(value) in stacks else 2)
    ]


def _matches(name: str, pattern: str) -> bool:
    return name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
