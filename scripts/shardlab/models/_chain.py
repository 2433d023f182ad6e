"""Models whose forward is a chain, so that they can be split into consecutive parts."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

INPUTS = "inputs"
"""Keyword under which every piece of a chain with ``takes_inputs`` gets the model's first input."""


class Segment(NamedTuple):
    """One link of a chain: it takes the state that the previous piece returns."""

    names: tuple[str, ...]
    """Submodules and parameters of the model that belong to this piece only."""
    run: Callable[..., Any]
    """Maps the state (tensors with the batch in dimension 0) to the next state: a tensor or a tuple of tensors."""
    takes: tuple[str, ...] = ()
    """Keyword arguments of the model that it takes, if they are given."""

    def next(self, state: tuple[Any, ...], context: dict[str, Any]) -> tuple[Any, ...]:
        """Return the state after this piece."""
        result = self.run(*state, **{name: context[name] for name in self.takes if name in context})
        return result if isinstance(result, tuple) else (result,)


class Absent(nn.Module):
    """Stands for a module that another piece has. Its parameters are tied to some of this piece, so that these keep
    their first names.
    """


class Chain(nn.Module):
    """Base of models that are a chain. The first piece takes the model's inputs, the last one returns its output.

    Keyword arguments of ``forward`` are passed to each piece that takes them, wherever it runs: their content (a mask)
    need not travel with the state.
    """

    _kept: list[Segment] | None = None
    has_last_segment = True
    """True if it returns the model's output, not the input of the next stage."""
    takes_inputs = False
    """True if each piece also takes the model's first input, under the keyword ``INPUTS``."""

    def segments(self) -> list[Segment]:
        """Return the links in order; each submodule and parameter of the model is in one of them."""
        raise NotImplementedError

    def obstacles(self) -> list[str]:
        """Return what makes it no chain after all."""
        return []

    def states(self, *state: Any, **context: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the state after each segment."""
        for segment in self.segments():
            state = segment.next(state, context)
            yield state

    def forward(self, *state: Any, **context: Any) -> Any:
        for segment in self.segments() if self._kept is None else self._kept:
            state = segment.next(state, context)
        return state if len(state) > 1 else state[0]

    def cut(self, start: int, stop: int) -> None:
        """Keep the pieces from ``start`` to before ``stop``, in place; the names of the remaining parameters do not
        change. Of parameters with several names (tied ones) that is the first one, which may be of another piece.
        """
        segments = self.segments()
        first: dict[int, str] = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            first.setdefault(id(parameter), name)
        for number, segment in enumerate(segments):
            for name in segment.names if not start <= number < stop else ():
                self.remove(name, later=number >= stop)
        now = {id(parameter): name for name, parameter in self.named_parameters()}
        remaining = {id(parameter): parameter for parameter in self.parameters()}
        for key, parameter in remaining.items():
            if now[key] != first[key]:
                self._hold(first[key], parameter)
        self._kept = segments[start:stop]
        self.has_last_segment = stop >= len(segments)

    def remove(self, name: str, *, later: bool) -> None:
        """Remove a submodule or parameter that an earlier or a ``later`` piece has."""
        parent, _, leaf = name.rpartition(".")
        owner = self.get_submodule(parent)
        (owner._modules if leaf in owner._modules else owner._parameters)[leaf] = None

    def _hold(self, name: str, parameter: nn.Parameter) -> None:
        """Give a parameter this name, of a module that was removed."""
        *path, leaf = name.split(".")
        owner: nn.Module = self
        for part in path:
            module = owner._modules[part]
            if module is None:
                module = owner._modules[part] = Absent()
            owner = module
        owner._parameters[leaf] = parameter


def stages_with(names: list[str], segments: list[Segment], where: list[tuple[int, int]]) -> list[int]:
    """Return the stages that have one of these names, of the stages that have the segments from start to stop."""
    stages = []
    for number, (start, stop) in enumerate(where):
        held = tuple(f"{name}." for segment in segments[start:stop] for name in segment.names)
        if any(f"{name}.".startswith(held) for name in names):
            stages.append(number)
    return stages
