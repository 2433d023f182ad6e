"""What jobs request: their resources from Slurm, their cores on this machine."""

from collections.abc import Callable
from typing import Any, cast

from shardlab.runs import slurm, stages
from shardlab.settings.sites import Stage
from shardlab.workflow.call_runs import CallRuns


class JobRequests:
    """Requests of the jobs of a call."""

    def __init__(self, call: CallRuns) -> None:
        self.call = call

    def of_a_run(self, stage: str, runtime: int | None = None, like: Stage | None = None) -> dict[str, Any]:
        """Return the Slurm resources of a stage's jobs: what `shardlab launch` will start.

        ``runtime`` is in minutes. The site's settings are those of the stage, or of the one that it is ``like``.
        """
        settings = like or cast(Stage, stage)

        def depending_on_size(key: str) -> Callable[[Any], Any]:
            def resource(wildcards: Any) -> Any:
                run = self.call.run_of(wildcards)
                size = stages.scope(stage, run).size(run)
                return slurm.resources(self.call.site, settings, *size, runtime)[key]

            return resource

        # Use functions only for what depends on the size: Snakemake calls each several times per job.
        first, *others = (slurm.resources(self.call.site, settings, n, n, runtime) for n in (1, 2, 3, 64))
        return {
            key: value if all(other[key] == value for other in others) else depending_on_size(key)
            for key, value in first.items()
        }

    def of_one_device(self, stage: Stage, runtime: int) -> dict[str, Any]:
        """Return the resources of a job on one device, in minutes."""
        return slurm.resources(self.call.site, stage, 1, 1, runtime)

    def of_the_configuration(self, stage: Stage) -> dict[str, Any]:
        """Return the resources of a job on the configuration's nodes and ranks, whatever the strategy."""
        config = self.call.config
        return slurm.resources(self.call.site, stage, config.nodes, config.ranks_per_node, runtime=10)

    def threads(self, stage: str) -> Callable[[Any], int]:
        """Return the CPU cores per node of a stage's job."""

        def cores(wildcards: Any) -> int:
            run = self.call.run_of(wildcards)
            return run.cpus_per_node if stages.scope(stage, run) is stages.Scope.RANKS else 1

        return cores
