"""The stages that launch.py starts: the program of each, and where it runs."""

from enum import Enum

from shardlab.settings.types import Run


class Scope(Enum):
    """Where a program runs: in one process, one on each node of the run, one for each rank."""

    ONE = "one"
    NODES = "nodes"
    RANKS = "ranks"

    def size(self, run: Run) -> tuple[int, int]:
        """Nodes, and devices on each, that a program of a run takes there."""
        return (1, 1) if self is Scope.ONE else (run.nodes, run.devices_per_node)


STAGES = {
    "init": (["init.py"], Scope.ONE),
    "train": (["train.py"], Scope.RANKS),
    "twins": (["twins.py"], Scope.ONE),
    "evaluate": (["evaluate.py"], Scope.ONE),
    "export": (["export.py"], Scope.ONE),
    "plan": (["plan.py"], Scope.ONE),
    "collectives": (["collectives.py"], Scope.RANKS),
    "preflight_nodes": (["preflight.py", "nodes"], Scope.NODES),
    "preflight_ranks": (["preflight.py", "ranks"], Scope.RANKS),
}
"""Stage: the words of its program, and where that runs (evaluate: unless the run says otherwise)."""


def scope(stage: str, run: Run) -> Scope:
    """Where a stage of a run takes place: what launch.py starts, and what a job asks Slurm for."""
    return Scope.RANKS if stage == "evaluate" and run.evaluated_sharded else STAGES[stage][1]
