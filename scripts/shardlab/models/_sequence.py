"""Split of sequences among the ranks of context parallelism."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from shardlab.settings.types import Run

POSITIONS = "positions"
"""Keyword argument of models for rows of several documents (packed sequences), (batch, whole length): the position of
each token in its document, from 0, where a document begins.
"""


@dataclass(frozen=True)
class SequenceSplit:
    """The part of every sequence that a rank has: one piece, or one from the head and one from the tail.

    With causal attention, a position attends to those before it, so that later pieces take longer. A rank with pieces
    r and 2 ranks - 1 - r (Llama 3: Grattafiori et al., 2024, arXiv:2407.21783, section 3.3.2) has as much to do as any
    other.
    """

    ranks: int = 1
    rank: int = 0
    head_tail: bool = False
    """Two pieces per rank instead of one."""

    @property
    def count(self) -> int:
        """Number of pieces of a sequence, which must divide its length."""
        return self.ranks * (2 if self.head_tail else 1)

    @property
    def pieces(self) -> tuple[int, ...]:
        """Numbers of this rank's pieces, in the order in which it holds them."""
        return (self.rank, self.count - 1 - self.rank) if self.head_tail else (self.rank,)

    def assign(self, model: nn.Module) -> None:
        """Make a model, or a part of one, compute this rank's part: modules with a ``sequence`` depend on it."""
        for module in model.modules():
            if hasattr(module, "sequence"):
                setattr(module, "sequence", self)  # noqa: B010

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Return the positions, in the whole sequence, of the ``length`` positions that this rank has."""
        if self.ranks == 1:
            return torch.arange(length, device=device)
        size = length // len(self.pieces)
        return torch.cat([torch.arange(number * size, (number + 1) * size, device=device) for number in self.pieces])

    def rows(self, table: Tensor, length: int) -> Tensor:
        """Return the rows of a table of all positions (positions, ...) for the ``length`` that this rank has.

        Positions after the last row are padding.
        """
        if self.ranks == 1:
            return table[:length]
        return table[self.positions(length, table.device).clamp(max=len(table) - 1)]

    def part(self, whole: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a tensor with whole sequences along ``dim``."""
        if self.ranks == 1:
            return whole
        pieces = whole.chunk(self.count, dim)
        return torch.cat([pieces[number] for number in self.pieces], dim)

    def parts(self, whole: Tensor, dim: int) -> list[Tensor]:
        """Return the parts of all ranks, in rank order (see ``part``)."""
        return [replace(self, rank=rank).part(whole, dim) for rank in range(self.ranks)]

    def in_order(self, gathered: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks, concatenated along ``dim`` in rank order, in the order of the sequence."""
        if not self.head_tail:
            return gathered
        halves = gathered.chunk(self.count, dim)
        return torch.cat((*halves[0::2], *reversed(halves[1::2])), dim)


def documents_of(positions: Tensor) -> Tensor:
    """Return the number of each token's document in its row, from the tokens' positions, of the same shape."""
    return (positions == 0).cumsum(1)


def largest_of(positions: Tensor) -> Tensor:
    """Return the largest position in the document of each token, from the tokens' positions, of the same shape."""
    documents = documents_of(positions)
    largest = positions.new_zeros(len(positions), positions.shape[1] + 1)
    return largest.scatter_reduce(1, documents, positions, "amax").gather(1, documents)


def same_document(rows: Tensor, keys: Tensor) -> Tensor:
    """Return which keys are in the document of each row, (batch, 1, rows, keys), from their documents' numbers."""
    return rows[:, None, :, None] == keys[:, None, None, :]


def first_part(run: Run) -> SequenceSplit:
    """Return the part of the first ranks of a run; all parts have the same shapes."""
    parts = run.mesh.parts("sequence")
    return SequenceSplit(parts, head_tail=run.options.splits_head_and_tail) if parts > 1 else SequenceSplit()
