"""Steps of a Slurm job (srun)."""

import os
import signal
from typing import ClassVar

from shardlab.errors import UserError
from shardlab.runs import launchers, slurm


class Launcher(launchers.JobLauncher):
    """See the base class."""

    # srun kills its tasks on SIGTERM, and forwards SIGUSR1 to them.
    stop_signal: ClassVar[signal.Signals] = signal.SIGUSR1
    kill_signal: ClassVar[signal.Signals] = signal.SIGTERM
    programs: ClassVar[tuple[str, ...]] = ("sbatch", "squeue", "srun")
    job_id = "SLURM_JOB_ID"
    node_rank = "SLURM_NODEID"

    def require(self, site_name: str) -> None:
        """Raise a UserError outside of a Slurm job."""
        if slurm.job_id() is None:
            raise UserError(
                f"site {site_name} starts ranks with srun, inside a Slurm job, and this is not one; "
                "run snakemake with --profile slurm, or choose site local."
            )

    @property
    def job_number(self) -> str:
        # The steps of a packed job meet at ports of their own.
        return "(SLURM_JOB_ID + $$)" if slurm.PACKED in os.environ else "SLURM_JOB_ID"

    def command(self, nodes: int, cpus: int) -> list[str]:
        return self._step(nodes, cpus, 1)

    def lines_of_ranks(
        self, on_node: list[str], nodes: int, cpus: int, ranks_per_node: int, options: list[str]
    ) -> list[str]:
        """Return Bash lines that run the lines once per rank, without torchrun; ``cpus`` are those of a node."""
        # What scripts that srun starts expect of the job's script: where their rank 0 listens.
        return [
            f'export MASTER_ADDR="{launchers.address(self.settings)}"',
            f'export MASTER_PORT="{self.port}"',
            self.executed(self._step(nodes, cpus // ranks_per_node, ranks_per_node), options, on_node),
        ]

    def _step(self, nodes: int, cpus: int, tasks: int) -> list[str]:
        # Nothing is inherited from the job: each number is given explicitly.
        packed = slurm.packed_step(cpus * tasks // self.site.cpus_per_rank, meet=nodes * tasks > 1)
        step = ["srun", *packed, f"--nodes={nodes}", f"--ntasks={nodes * tasks}", f"--ntasks-per-node={tasks}"]
        return [*step, f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", "--export=ALL"]
