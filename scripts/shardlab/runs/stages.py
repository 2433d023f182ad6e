"""The stages that `shardlab launch` starts, and where they run."""

from enum import Enum
from typing import NamedTuple

from shardlab.settings.types import Ranks, Run


class Scope(Enum):
    """Number of processes of a program: one, one per node of the run, or one per rank."""

    ONE = "one"
    NODES = "nodes"
    RANKS = "ranks"

    def size(self, run: Ranks) -> tuple[int, int]:
        """Return the nodes, and the devices per node, that a program of a run uses."""
        return (1, 1) if self is Scope.ONE else (run.nodes, run.devices_per_node)


class Stage(NamedTuple):
    """A stage, a verb: where it runs, and the settings that start it."""

    scope: Scope
    settings: type[Ranks] = Run
    reads_settings: bool = True
    """False: they only say how to start it."""


STAGES = {
    "prove": Stage(Scope.ONE),
    "init": Stage(Scope.ONE),
    "train": Stage(Scope.RANKS),
    "noise_floor": Stage(Scope.ONE),
    "evaluate": Stage(Scope.ONE),
    "compare": Stage(Scope.ONE),
    "capture": Stage(Scope.RANKS),
    "diagnose": Stage(Scope.ONE),
    "export": Stage(Scope.ONE),
    "plan": Stage(Scope.ONE, Ranks, reads_settings=False),
    "preflight_nodes": Stage(Scope.NODES, Ranks),
    "preflight_ranks": Stage(Scope.RANKS, Ranks),
}

MINUTES = {
    **dict.fromkeys(("prove", "init", "evaluate", "compare", "capture", "diagnose", "export"), 30),
    "plan": 60,
    "preflight": 10,
}
"""Time limits of the jobs that are not as long as a training, unless the site's file sets others (minutes)."""


def scope(stage: str, run: Ranks) -> Scope:
    """Return the scope of a stage: what `shardlab launch` starts, and what a job requests from Slurm."""
    if stage == "evaluate" and isinstance(run, Run) and run.evaluated_sharded:
        return Scope.RANKS
    if stage == "capture" and isinstance(run, Run) and run.script:
        return Scope.ONE  # its training has written what there is
    return STAGES[stage].scope
