"""Pipeline schedules: one table of what each one is.

GPipe (Huang et al., 2019, arXiv:1811.06965), 1F1B and interleaved 1F1B with a flush
(Narayanan et al., 2021, arXiv:2104.04473), zero bubble with a V (Qi et al., 2024, arXiv:2401.10241).
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Schedule:
    """One schedule of torch.distributed.pipelining."""

    torch_class: str
    """Name of its class there."""
    stages_per_rank: int = 1
    mirrored: bool = False
    """True if a rank's second stage is the mirror image of its first (a V), False if stages are assigned in a loop."""
    needs_full_pipeline: bool = True
    """True if there must be at least as many micro-batches as ranks."""
    in_rounds: bool = False
    """True if the number of micro-batches must be a multiple of the ranks."""
    splits_backward: bool = False
    """True if the gradients of inputs and of weights are computed separately."""

    def stages(self, ranks: int, rank: int) -> list[int]:
        if self.stages_per_rank == 1:
            return [rank]
        return [rank, 2 * ranks - 1 - rank] if self.mirrored else [rank, rank + ranks]

    def rank_of(self, ranks: int, stage: int) -> int:
        return next(rank for rank in range(ranks) if stage in self.stages(ranks, rank))

    def refusal(self, name: str, ranks: int, n_microbatches: int) -> str | None:
        """Return why this number of micro-batches is not possible, or None."""
        if self.needs_full_pipeline and n_microbatches < ranks:
            return f"schedule {name} needs at least {ranks} microbatches; n_microbatches is {n_microbatches}"
        if self.in_rounds and n_microbatches % max(1, n_microbatches // ranks):
            return f"{name} needs a multiple of {ranks} microbatches; n_microbatches is {n_microbatches}"
        return None

    def bubble(self, ranks: int, n_microbatches: int) -> float | None:
        """Return the fraction of a step in which a rank waits, if all stages are equal; None if there is no closed
        form.
        """
        if self.splits_backward:
            return None
        segments = n_microbatches * self.stages_per_rank
        return (ranks - 1) / (segments + ranks - 1)


SCHEDULES = {
    "GPipe": Schedule("ScheduleGPipe", needs_full_pipeline=False),
    "1F1B": Schedule("Schedule1F1B"),
    "Interleaved1F1B": Schedule("ScheduleInterleaved1F1B", stages_per_rank=2, in_rounds=True),
    "ZBVZeroBubble": Schedule("ScheduleZBVZeroBubble", stages_per_rank=2, mirrored=True, splits_backward=True),
}


def boundaries(segments: int, stages: int) -> list[tuple[int, int]]:
    """Return (start, stop) of the pieces of each stage, as even as possible; the first ones get one more."""
    size, more = divmod(segments, stages)
    starts = [stage * size + min(stage, more) for stage in range(stages + 1)]
    return list(pairwise(starts))
