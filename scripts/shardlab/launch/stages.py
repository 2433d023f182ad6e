"""The stages that launch.py starts: the program of each, and where it runs."""

from enum import Enum

from shardlab.settings.types import Run


class Scope(Enum):
    """Number of processes of a program: one, one per node of the run, or one per rank."""

    ONE = "one"
    NODES = "nodes"
    RANKS = "ranks"

    def size(self, run: Run) -> tuple[int, int]:
        """Return the nodes, and the devices per node, that a program of a run uses."""
        return (1, 1) if self is Scope.ONE else (run.nodes, run.devices_per_node)


STAGES = {
    "init": (["init.py"], Scope.ONE),
    "train": (["train.py"], Scope.RANKS),
    "noise_floor": (["noise_floor.py"], Scope.ONE),
    "evaluate": (["evaluate.py"], Scope.ONE),
    "compare": (["compare.py"], Scope.ONE),
    "capture": (["capture.py"], Scope.RANKS),
    "diagnose": (["diagnose.py"], Scope.ONE),
    "export": (["export.py"], Scope.ONE),
    "plan": (["plan.py"], Scope.ONE),
    "collectives": (["collectives.py"], Scope.RANKS),
    "preflight_nodes": (["preflight.py", "nodes"], Scope.NODES),
    "preflight_ranks": (["preflight.py", "ranks"], Scope.RANKS),
}
"""Stage: the words of its program, and its scope (evaluate: unless the run says otherwise)."""


def scope(stage: str, run: Run) -> Scope:
    """Return the scope of a run's stage: what launch.py starts, and what a job requests from Slurm."""
    return Scope.RANKS if stage == "evaluate" and run.evaluated_sharded else STAGES[stage][1]
