"""Models whose forward is a chain, so that they can be cut into consecutive parts."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn


class Piece(NamedTuple):
    """One link of a chain: it takes the state that the piece before it gives."""

    names: tuple[str, ...]
    """Submodules and parameters of the model that belong to it and to no other piece."""
    run: Callable[..., Any]
    """From the state (tensors with the batch in dimension 0) to the next state: a tensor or a tuple of tensors."""
    takes: tuple[str, ...] = ()
    """Keyword arguments of the model's that it takes, where they are given."""

    def next(self, state: tuple[Any, ...], context: dict[str, Any]) -> tuple[Any, ...]:
        """The state behind this piece."""
        result = self.run(*state, **{name: context[name] for name in self.takes if name in context})
        return result if isinstance(result, tuple) else (result,)


class Chain(nn.Module):
    """Base of models that are a chain. The first piece takes the model's inputs, the last one gives its output.

    Keyword arguments of ``forward`` are given to each piece that takes them, wherever it runs: what they carry (a mask)
    need not travel with the state.
    """

    _kept: list[Piece] | None = None

    def pieces(self) -> list[Piece]:
        """The links in their order; each submodule and parameter of the model is in one of them."""
        raise NotImplementedError

    def forward(self, *state: Any, **context: Any) -> Any:
        """Run the state through the pieces."""
        for piece in self.pieces() if self._kept is None else self._kept:
            state = piece.next(state, context)
        return state if len(state) > 1 else state[0]

    def cut(self, start: int, stop: int) -> None:
        """Keep the pieces from ``start`` to before ``stop``, in place; the names of what stays do not change."""
        pieces = self.pieces()
        for piece in pieces[:start] + pieces[stop:]:
            for name in piece.names:
                parent, _, leaf = name.rpartition(".")
                owner = self.get_submodule(parent)
                (owner._modules if leaf in owner._modules else owner._parameters)[leaf] = None
        self._kept = pieces[start:stop]
