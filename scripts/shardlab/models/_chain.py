"""Models whose forward is a chain, so that they can be split into consecutive parts."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn


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


class Chain(nn.Module):
    """Base of models that are a chain. The first piece takes the model's inputs, the last one returns its output.

    Keyword arguments of ``forward`` are passed to each piece that takes them, wherever it runs: their content (a mask)
    need not travel with the state.
    """

    _kept: list[Segment] | None = None
    has_last_segment = True
    """True if it returns the model's output, not the input of the next stage."""

    def segments(self) -> list[Segment]:
        """Return the links in order; each submodule and parameter of the model is in one of them."""
        raise NotImplementedError

    def forward(self, *state: Any, **context: Any) -> Any:
        for segment in self.segments() if self._kept is None else self._kept:
            state = segment.next(state, context)
        return state if len(state) > 1 else state[0]

    def cut(self, start: int, stop: int) -> None:
        """Keep the pieces from ``start`` to before ``stop``, in place; the names of the remaining parameters do not
        change.
        """
        segments = self.segments()
        for segment in segments[:start] + segments[stop:]:
            for name in segment.names:
                parent, _, leaf = name.rpartition(".")
                owner = self.get_submodule(parent)
                (owner._modules if leaf in owner._modules else owner._parameters)[leaf] = None
        self._kept = segments[start:stop]
        self.has_last_segment = stop >= len(segments)
