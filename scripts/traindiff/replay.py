"""A step of an optimizer, taken again by PyTorch's own one: from what a dump has of before it, and says of it."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from traindiff.capture_files import InputError
from traindiff.fit import Read, View

IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable", "initial_lr")
"""Settings of groups that say how a step is taken, or what a schedule keeps there."""
NAMES = {"AdamW": "Adam", "FusedAdam": "Adam", "DeepSpeedCPUAdam": "Adam"}
"""Optimizers that are another one of PyTorch's, with other settings (AdamW: decoupled_weight_decay), or elsewhere."""


def of_pytorch(optimizer: str) -> str:
    """Return the name of the optimizer of PyTorch that one of another name is."""
    return NAMES.get(optimizer, optimizer)


def of(view: View, side: int, settings: Mapping[str, dict[str, Any]]) -> Read:
    """Return a function that gives an update, or a tensor of the state after the step, of one of the two trainings.

    The function raises an InputError where a dump lacks what it needs, or PyTorch has no such optimizer.
    """
    taken: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}

    def read(name: str) -> Tensor:
        parameter, _, key = name.partition("//")
        if parameter not in taken:
            taken[parameter] = _step(view, side, parameter, settings[parameter])
        update, state = taken[parameter]
        if key and key not in state:
            raise InputError(f"{name} is not a state of this optimizer.")
        return state[key] if key else update

    return read


def _step(view: View, side: int, name: str, settings: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    capture, gradient = view.pair.captures[side], view.gradients(side)
    kind = of_pytorch(settings.get("optimizer", ""))
    made = getattr(torch.optim, kind, None)
    if made is None or gradient is None:
        raise InputError(f"The step of {name} cannot be taken again.")
    betas = [settings[key] for key in ("beta1", "beta2", "beta3") if key in settings]
    given = {key: settings[key] for key in inspect.signature(made).parameters if settings.get(key) is not None}
    given |= {"betas": tuple(betas)} if betas else {}
    weight = nn.Parameter(capture.before(view.step)[name].double().clone())
    weight.grad = gradient(name).to(weight.dtype)
    before = weight.detach().clone()
    try:
        optimizer = made([weight], **{key: value for key, value in given.items() if key not in IMPLEMENTATIONS})
        optimizer.state[weight].update(_state(view, side, name, settings))
        optimizer.step()
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"PyTorch's {kind} does not take the step of {name} ({error}).") from None
    state = {key: value for key, value in optimizer.state[weight].items() if isinstance(value, Tensor)}
    return weight.detach() - before, state


def _state(view: View, side: int, name: str, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Return a parameter's state before the step: as written after the last one. Where states after the step are equal,
    Adam's is computed back from them, which also holds after a resume.
    """
    capture, start, count = view.pair.captures[side], f"{name}//", settings.get("count", 0)
    last, now = (capture.tensors(f"step{step}/optimizer") for step in (view.step - 1, view.step))
    is_back = view.stage.kind == "update" and all(start + key in now for key in ("exp_avg", "exp_avg_sq"))
    file = now if is_back else last
    names = file.names if is_back or count else []
    state = {each.removeprefix(start): file[each].double().clone() for each in names if each.startswith(start)}
    if is_back:
        gradient = view.gradients(side)
        assert gradient is not None
        for key, beta, power in (("exp_avg", "beta1", 1), ("exp_avg_sq", "beta2", 2)):
            state[key] = (state[key] - (1 - settings[beta]) * gradient(name) ** power) / settings[beta]
    return state and state | {"step": torch.tensor(float(count))}
