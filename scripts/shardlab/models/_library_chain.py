"""A model of the transformers library as a chain. Each piece runs the library's own forward, so that masks, positions
and whatever else the library computes around the layers are its own.

The layers of earlier pieces return the states that this piece was given, and the first layer of a later piece ends the
forward with what it was given. Every piece also takes the model's inputs. What comes before the layers (embeddings)
and after them (norm, head) is found by running the model once on fake tensors.
"""

import copy
import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from shardlab.errors import UserError
from shardlab.models._chain import INPUTS, Absent, Chain, Segment
from shardlab.models.contents import reached
from shardlab.models.weights import allocate
from shardlab.patches.torch_internals import with_base

STATES = "hidden_states"
"""Name of the states in the library's layers, where they are not the first argument."""
CHANGED = "the states change between them"
CHANNELS = 3
"""Of pictures, where a configuration names none."""
SHAPE, PICTURE = (2, 8), 64
"""Sequences and tokens of the run on fake tensors; of a model of images, two of these. Pixels of a side, where a model
has no size of its own.
"""


class Surroundings(NamedTuple):
    """Modules with parameters before and after the layers, by name, and what prevents that these are split."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    obstacles: list[str]
    more: int | None
    """Results of a layer besides the states, if it returns a tuple."""


class LibraryChain(Chain):
    """Base of a class of the library: see ``as_chain``."""

    takes_inputs = True
    layers_name: str
    """Its list of layers."""
    _surroundings: Surroundings | None = None
    _begins_with_layers = _ends_with_layers = False
    _given: Any = None
    """Where the layers of earlier pieces find the states that this one was given."""

    def segments(self) -> list[Segment]:
        """Return what is before the layers, each layer, and what is after them.

        ``run`` of these is never called: a piece runs the whole forward.
        """
        before, after, *_ = self.surroundings()
        layers = [*enumerate(self.get_submodule(self.layers_name).children())]
        each = [Segment((f"{self.layers_name}.{number}",), layer) for number, layer in layers]
        return [Segment(before, self), *each, Segment(after, self)]

    def surroundings(self) -> Surroundings:
        if self._surroundings is None:
            self._surroundings = _find_surroundings(self, self.layers_name)
        return self._surroundings

    def obstacles(self) -> list[str]:
        return self.surroundings().obstacles

    def states(self, *state: Any, **context: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the state after each segment, on the meta device, for arguments of these shapes."""
        noted = _Calls(self.surroundings().more)
        alone = _with_layers(self, noted)
        with on_fake_tensors(alone):
            outputs = alone(*map(_empty, state), **{name: _empty(value) for name, value in context.items()})
        for value in (*(call.states for call in noted.calls), noted.calls[-1].result, outputs):
            yield (torch.empty(value.shape, dtype=value.dtype, device="meta"),)

    def forward(self, *state: Any, **context: Any) -> Any:
        run: Callable[..., Any] = super(Chain, self).forward
        if self._kept is None:
            return run(*state, **context)
        inputs = context.pop(INPUTS)
        self._given.states = state[0]
        hooks = self._at_the_ends()
        try:
            return run(inputs, **context)
        except _Finished as finished:
            return finished.states
        finally:
            for hook in hooks:
                hook.remove()
            self._given.states = None

    def _at_the_ends(self) -> list[Any]:
        """Give the model's first layer the states and leave after the last one, where no other layer does it."""
        layers = [*self.get_submodule(self.layers_name).children()]

        def give(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            states = self._given.states
            return ((states, *args[1:]), named) if args else (args, named | {STATES: states})

        def leave(_: nn.Module, __: Any, result: Any) -> None:
            raise _Finished(result[0] if isinstance(result, tuple) else result)

        hooks = []
        if self._begins_with_layers:
            # Before the hooks of FSDP, which look at the states' gradients.
            hooks.append(layers[0].register_forward_pre_hook(give, prepend=True, with_kwargs=True))
        if self._ends_with_layers:
            hooks.append(layers[-1].register_forward_hook(leave))  # behind the hooks of FSDP
        return hooks

    def cut(self, start: int, stop: int) -> None:
        layers = len(self.segments()) - 2
        self._given = SimpleNamespace(states=None, more=self.surroundings().more)
        self._begins_with_layers, self._ends_with_layers = start == 1, stop == layers + 1
        super().cut(start, stop)

    def remove(self, name: str, *, later: bool) -> None:
        parent, _, leaf = name.rpartition(".")
        owner = self.get_submodule(parent)
        module = owner._modules.get(leaf)
        if module is None:  # a parameter that no forward uses
            super().remove(name, later=later)
            return
        if parent == self.layers_name:
            layer = _Later() if later else _Earlier(self._given)
            vars(layer).update(_facts(module))
            owner._modules[leaf] = layer
            return
        dtype = next(module.parameters()).dtype
        if isinstance(module, nn.Embedding):
            owner._modules[leaf] = _NoEmbedding(module.embedding_dim, self._given, dtype)
        else:
            owner._modules[leaf] = _Through(self._given, dtype, module)


def as_chain(model: nn.Module, layers: str) -> None:
    """Make a model a ``LibraryChain``, in place, whose list of layers has this name."""
    with_base(model, LibraryChain, layers_name=layers)


class _Finished(Exception):
    """Leaves the library's forward with the states that the next piece takes."""

    def __init__(self, states: Tensor) -> None:
        super().__init__("a piece is finished")
        self.states = states


class _Earlier(Absent):
    """A layer of an earlier piece: the last one's result is what the first layer here takes."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given

    def forward(self, *_: Any, **__: Any) -> Any:
        return _as_result(self.given.states, self.given.more)


class _Later(Absent):
    """A layer of a later piece. Its call is where this one ends: a hook of the last layer here would come before the
    hooks of FSDP, which then never run.
    """

    def forward(self, *args: Any, **named: Any) -> Any:
        raise _Finished(_states(args, named))


class _Through(Absent):
    """A module of an earlier piece, or of a later one."""

    def __init__(self, given: Any, dtype: torch.dtype, like: nn.Module | None = None) -> None:
        super().__init__()
        self.given, self.dtype = given, dtype
        # The library may read types inside of it. As attributes: they are none of the model's modules.
        inside = {name: _Through(given, dtype, child) for name, child in like.named_children()} if like else {}
        vars(self).update(inside)

    @property
    def weight(self) -> Tensor:
        """Its tied parameter, or a tensor for the library to read type and device."""
        held = self._parameters.get("weight")
        return torch.empty(0, dtype=self.dtype, device=self.given.states.device) if held is None else held

    def forward(self, *args: Any, **named: Any) -> Any:
        return args[0] if args else next(iter(named.values()))


class _NoEmbedding(_Through):
    """An embedding of an earlier piece: its shape, from which the library computes masks and positions."""

    def __init__(self, width: int, given: Any, dtype: torch.dtype) -> None:
        super().__init__(given, dtype)
        self.width = width

    def forward(self, indices: Any, *_: Any, position_ids: Tensor | None = None, **__: Any) -> Tensor:
        if not isinstance(indices, Tensor):
            raise UserError(
                "the model has an embedding that is given no tokens, whose values layers of all stages may take; "
                "leave out pp and mp."
            )
        # Some are given a mask first, which is of the whole sequence where ranks have a part.
        indices = indices if position_ids is None else position_ids
        return torch.zeros(*indices.shape, self.width, dtype=self.dtype, device=indices.device)


class _Call(NamedTuple):
    """A layer's call."""

    layer: int
    states: Tensor
    others: dict[str, Any]
    """Its other arguments."""
    result: Tensor


class _Calls:
    """The calls of a model's layers, none of which computes anything."""

    def __init__(self, more: int | None) -> None:
        self.calls: list[_Call] = []
        self.more = more

    def layer(self, number: int, like: nn.Module, *, of_pictures: bool) -> nn.Module:
        """Return what stands for a layer; one ``of_pictures`` may change their size, so it runs, on fake tensors."""
        layer = _Noted(self, number)
        vars(layer).update(_facts(like), runs=copy.deepcopy(like).eval() if of_pictures else None)
        return layer


class _Noted(Absent):
    def __init__(self, noted: _Calls, number: int) -> None:
        super().__init__()
        self.noted, self.number = noted, number

    def forward(self, *args: Any, **named: Any) -> Any:
        states = _states(args, named)
        result = torch.empty_like(self._result(states, args, named), requires_grad=states.is_floating_point())
        others = {f"argument {place}": value for place, value in enumerate(args)} | named
        self.noted.calls.append(_Call(self.number, states, others, result))
        return _as_result(result, self.noted.more)

    def _result(self, states: Tensor, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """Return a tensor of the result's shape: that of the states, if the layer does not run or returns others."""
        runs: Any = vars(self)["runs"]
        if runs is None:
            return states
        try:
            allocate(runs, torch.device("cpu"))
            found = runs(*args, **named)
        except Exception:  # whatever the library reads of fake values
            return states
        found = found[0] if isinstance(found, tuple) else found
        return found if isinstance(found, Tensor) else states


def _as_result(states: Any, more: int | None) -> Any:
    return states if more is None else (states, *[None] * more)


def _states(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return args[0] if args else named[STATES]


def _facts(layer: nn.Module) -> dict[str, Any]:
    """Return what the library may read of a layer that it calls: its number, its kind."""
    ours = vars(nn.Module()).keys() | {"forward"}
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in ours and not name.startswith("_") and not isinstance(value, nn.Module | Tensor)
    }


def _with_layers(model: Any, noted: _Calls) -> Any:
    """Return a copy of a model whose layers do nothing but note their calls."""
    layers = model.get_submodule(model.layers_name)
    of_pictures = model.main_input_name == "pixel_values"
    memo: Any = {id(layer): noted.layer(number, layer, of_pictures=of_pictures) for number, layer in enumerate(layers)}
    return copy.deepcopy(model, memo)


@contextmanager
def on_fake_tensors(model: nn.Module) -> Iterator[nn.Module]:
    """Run a model without weights on fake tensors; on the meta device the library reads values."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            allocate(model, torch.device("cpu"))
            yield model
    finally:
        # The library caches tables, such as beit's index of positions, which must not be fake for the next model.
        for each in gc.get_objects():
            if type(each) is functools._lru_cache_wrapper and each.__module__.startswith("transformers.models."):
                each.cache_clear()


def _empty(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype)


def _find_surroundings(model: Any, layers: str) -> Surroundings:
    """Run the model with layers that return a tensor, or else a tuple."""
    reason = ""
    for more in (None, 0, 1, 2):
        try:
            found = _surroundings_if(model, layers, more)
        except Exception as error:  # whatever the library makes of a wrong result
            reason = reason or _obstacle(error)
            continue
        if CHANGED not in found.obstacles:
            return found
        reason = CHANGED
    return Surroundings((), (), [reason], None)


def _obstacle(error: Exception) -> str:
    """Return what the library's forward does with its layers that no piece of it can."""
    if isinstance(error, DataDependentOutputException):
        return "the forward reads values of tensors outside of them"
    if isinstance(error, AttributeError) and isinstance(error.obj, _Noted):
        return f"the forward reads their {error.name}"
    return "how the forward uses them was not found"


def _surroundings_if(model: Any, layers: str, more: int | None) -> Surroundings:
    noted = _Calls(more)
    alone = _with_layers(model, noted).eval()
    called: dict[str, set[bool]] = {}

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.setdefault(name, set()).add(bool(noted.calls))

    for name, module in alone.named_modules():
        if module._parameters and not f"{layers}.".startswith(f"{name}.") and name:
            module.register_forward_pre_hook(note(name))
    with on_fake_tensors(alone):
        logits = alone(example(model))
        ids_before, ids_after = reached(noted.calls[0].states) if noted.calls else set(), reached(logits)
    before, after = (_topmost(name for name, places in called.items() if place in places) for place in (False, True))
    obstacles = [*_between(noted.calls, len(alone.get_submodule(layers)))]
    obstacles += [f"{name} is used before and after them" for name in before if name in after]
    direct: list[str] = []
    unused: list[str] = []
    held = {id(value) for name, value in _parameters(alone) if _inside(name, after)}
    for name, value in _parameters(alone):
        inside, used = _inside(name, before) or _inside(name, after), id(value) in ids_before | ids_after
        if not inside:
            (direct if used else unused).append(name)
        elif _inside(name, before) and id(value) in ids_after - held:
            obstacles.append(f"{name} is used after them, too")
    if direct:
        obstacles.append(f"no module's call uses {', '.join(direct)}")
    return Surroundings(before, (*after, *unused), obstacles, more)


def example(model: Any) -> Tensor:
    """Return tokens or pictures that a model of the library takes; convolutions take pictures of any size."""
    if model.main_input_name != "pixel_values":
        return torch.zeros(SHAPE, dtype=torch.long)
    config = model.config
    own = next((each for each in (config, getattr(config, "vision_config", None)) if hasattr(each, "image_size")), None)
    size = getattr(own, "image_size", PICTURE)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    key = key_of_channels(functools.partial(hasattr, own or config))
    return torch.zeros(SHAPE[0], getattr(own or config, key) if key else CHANNELS, height, width)


def key_of_channels(has: Callable[[str], bool]) -> str | None:
    """Return the key of a configuration with the channels of pictures; of some types it is that of the first layer."""
    return next(filter(has, ("num_channels", "stem_num_channels")), None)


def _between(calls: list[_Call], layers: int) -> Iterator[str]:
    """Yield what layers have of each other, besides the states that each hands to the next."""
    if [call.layer for call in calls] != [*range(layers)]:
        yield "they are not called once each in their order"
    elif any(call.states is not last.result for last, call in pairwise(calls)):
        yield CHANGED
    others = {name: value for call in calls for name, value in call.others.items() if value is not call.states}
    for name, value in others.items():
        if isinstance(value, dict | list) and not value:  # for layers to fill
            yield f"they share {name}"
        elif any(isinstance(each, Tensor) and each.requires_grad for each in _flat(value)):
            yield f"they also take {name}, which is computed from weights"


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _flat(each)
    else:
        yield value


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [*model.named_parameters(remove_duplicate=False)]


def _inside(name: str, modules: tuple[str, ...]) -> bool:
    return f"{name}.".startswith(tuple(f"{module}." for module in modules))


def _topmost(names: Iterator[str]) -> tuple[str, ...]:
    """Return the names that are not inside another of them."""
    found: list[str] = []
    for name in sorted(names):
        if not _inside(name, tuple(found)):
            found.append(name)
    return tuple(found)
