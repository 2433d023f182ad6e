"""The stages that `shardlab launch` starts: the verb of each, and where it runs."""

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
    """A stage: its verb, where it runs, and the settings that start it."""

    words: tuple[str, ...]
    scope: Scope
    settings: type[Ranks] = Run
    reads_settings: bool = True
    """False: they only say how to start it."""


STAGES = {
    "prove": Stage(("prove",), Scope.ONE),
    "init": Stage(("init",), Scope.ONE),
    "train": Stage(("train",), Scope.RANKS),
    "noise_floor": Stage(("noise_floor",), Scope.ONE),
    "evaluate": Stage(("evaluate",), Scope.ONE),
    "compare": Stage(("compare",), Scope.ONE),
    "capture": Stage(("capture",), Scope.RANKS),
    "diagnose": Stage(("diagnose",), Scope.ONE),
    "export": Stage(("export",), Scope.ONE),
    "plan": Stage(("plan",), Scope.ONE, Ranks, reads_settings=False),
    "collectives": Stage(("collectives",), Scope.RANKS, Ranks),
    "preflight_nodes": Stage(("preflight", "nodes"), Scope.NODES, Ranks),
    "preflight_ranks": Stage(("preflight", "ranks"), Scope.RANKS, Ranks),
}

MINUTES = {
    "prove": 30,
    "init": 30,
    "evaluate": 30,
    "compare": 30,
    "capture": 30,
    "diagnose": 30,
    "export": 30,
    "plan": 60,
    "preflight": 10,
    "collectives": 10,
}
"""Time limits of the jobs that are not as long as a training, unless the site's file sets others (minutes)."""


def words(stage: str, run: Ranks) -> tuple[str, ...]:
    """Return the verb of a stage."""
    if stage == "train" and isinstance(run, Run) and run.script:
        return ("train_script",)
    return STAGES[stage].words


def scope(stage: str, run: Ranks) -> Scope:
    """Return the scope of a stage: what `shardlab launch` starts, and what a job requests from Slurm."""
    if stage == "evaluate" and isinstance(run, Run) and run.evaluated_sharded:
        return Scope.RANKS
    if stage == "capture" and isinstance(run, Run) and run.script:
        return Scope.ONE  # its training has written what there is
    return STAGES[stage].scope
