"""The stages that `shardlab launch` starts: the verb of each, and where it runs."""

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
    "init": (["init"], Scope.ONE),
    "train": (["train"], Scope.RANKS),
    "noise_floor": (["noise_floor"], Scope.ONE),
    "evaluate": (["evaluate"], Scope.ONE),
    "compare": (["compare"], Scope.ONE),
    "capture": (["capture"], Scope.RANKS),
    "diagnose": (["diagnose"], Scope.ONE),
    "export": (["export"], Scope.ONE),
    "plan": (["plan"], Scope.ONE),
    "collectives": (["collectives"], Scope.RANKS),
    "preflight_nodes": (["preflight", "nodes"], Scope.NODES),
    "preflight_ranks": (["preflight", "ranks"], Scope.RANKS),
}
"""Stage: its verb, and its scope (evaluate: unless the run says otherwise)."""


def scope(stage: str, run: Run) -> Scope:
    """Return the scope of a run's stage: what `shardlab launch` starts, and what a job requests from Slurm."""
    return Scope.RANKS if stage == "evaluate" and run.evaluated_sharded else STAGES[stage][1]
