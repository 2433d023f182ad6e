"""Models: one file each, a plain single-device ``nn.Module`` called ``Model``; none knows of ranks.

Models of the transformers library (``hf:``) come from their folder instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shardlab.errors import UserError, unknown
from shardlab.settings import Run


def build(run: Run, *, weights: bool = True) -> nn.Module:
    """The model of a run in its dtype, on the CPU; without ``weights``, its parameters are on the meta device.

    Weights are drawn in float32; a pretrained model has its own (see ``init.py``).

    Raises:
        UserError: no such model, or arguments that it does not take.
    """
    with nullcontext() if weights else _parameters_on_meta():
        if run.model.folder is None:
            model = create(run.model.name, run.model.args)
        else:
            # A few seconds that only these models need.
            from shardlab.models import _transformers

            model = _transformers.build(run, weights=weights)
    return model.to(getattr(torch, run.recipe.dtype))


def create(name: str, args: dict[str, Any]) -> nn.Module:
    """The model ``scripts/shardlab/models/<name>.py``, with weights drawn in float32.

    Raises:
        UserError: no such file, or arguments that it does not take.
    """
    known = [path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")]
    if name not in known:
        raise unknown("model", name, known, "scripts/shardlab/models")
    try:
        model: nn.Module = import_module(f"shardlab.models.{name}").Model(**args)
    except (TypeError, ValueError) as error:
        raise UserError(f"model {name} cannot be built with {args}: {error}.") from error
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules that are made inside keep no parameter, but their buffers: a position table is in no file."""
    register = nn.Module.register_parameter

    def without_data(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # a tied one stays the same object
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = without_data  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers under the plain model's names; tied ones once, under the first name."""
    seen: set[int] = set()
    kept = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            kept[name] = value
    return kept


def parameter_count(model: nn.Module) -> int:
    """Number of trainable values, over the whole model."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def matching(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Submodules whose name matches; ``layers.*`` means the children of ``layers``, not everything below them."""
    return [
        module
        for name, module in model.named_modules()
        if name.count(".") == pattern.count(".") and fnmatchcase(name, pattern)
    ]
