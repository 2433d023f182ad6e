"""What jobs request: their resources from Slurm, their cores on this machine."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from shardlab.errors import UserError
from shardlab.runs import slurm, stages
from shardlab.settings.sites import Stage
from shardlab.workflow.call_runs import CallRuns
from shardlab.workflow.call_start import as_workflow_error


class JobRequests:
    """Requests of the jobs of a call."""

    def __init__(self, call: CallRuns) -> None:
        """Check that the site's file has a queue for each training of the call.

        Raises:
            UserError: it has none for one of them.
        """
        self.call = call
        if call.site.slurm is None:
            return
        for run in call.requested.values():
            try:
                slurm.queue_for(call.site.slurm, "train", *stages.scope("train", run).size(run))
            except UserError as error:
                raise UserError(f"{run.strategy} x {run.workload}: {error}") from None

    def of_a_run(self, stage: str, like: Stage | None = None) -> dict[str, Any]:
        """Return the Slurm resources of a stage's jobs: what `shardlab launch` will start.

        The site's settings are those of the stage, or of the one that it is ``like``.
        """

        def size(wildcards: Any) -> tuple[int, int]:
            run = self.call.run_of(wildcards)
            return stages.scope(stage, run).size(run)

        return self._resources(like or cast(Stage, stage), stages.MINUTES.get(stage), size)

    def of_one_device(self, stage: Stage) -> dict[str, Any]:
        """Return the resources of a job on one device."""
        return slurm.resources(self.call.site, stage, 1, 1, stages.MINUTES.get(stage))

    def of_the_configuration(self, stage: Stage) -> dict[str, Any]:
        """Return the resources of a job on the configuration's nodes and ranks, whatever the strategy."""
        config = self.call.config
        return self._resources(
            stage, stages.MINUTES.get(stage), lambda wildcards: (config.nodes, config.ranks_per_node)
        )

    def _resources(self, stage: Stage, runtime: int | None, size: Callable[[Any], tuple[int, int]]) -> dict[str, Any]:
        """Return the resources of jobs whose nodes, and GPUs per node, depend on their wildcards."""
        if self.call.site.slurm is None:
            return {}

        @cache
        def requested(nodes: int, gpus_per_node: int) -> dict[str, Any]:
            with as_workflow_error():
                return slurm.resources(self.call.site, stage, nodes, gpus_per_node, runtime)

        def depending_on_size(key: str) -> Callable[[Any], Any]:
            return lambda wildcards: requested(*size(wildcards)).get(key)

        # Use functions only for what depends on the size: Snakemake calls each several times per job.
        fixed = {key: value for key, value in requested(1, 1).items() if key not in slurm.SIZED}
        return fixed | {key: depending_on_size(key) for key in slurm.SIZED}

    def threads(self, stage: str) -> Callable[[Any], int]:
        """Return the CPU cores per node of a stage's job."""

        def cores(wildcards: Any) -> int:
            run = self.call.run_of(wildcards)
            return run.cpus_per_node if stages.scope(stage, run) is stages.Scope.RANKS else 1

        return cores
