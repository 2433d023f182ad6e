"""What jobs request of Slurm, in the units of its limits, and the sbatch command that requests it."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.runs import slurm, stages
from shardlab.settings.sites import Site
from shardlab.settings.types import Run

GPUS = re.compile(r"(?:^gpu|--gpus-per-node=)(?::?[A-Za-z]\w*)?:?(\d+)")


@dataclass(frozen=True)
class Request:
    """One job."""

    what: str
    """Its name in a sentence."""
    resources: Mapping[str, Any]
    """What Snakemake passes to its Slurm plugin."""
    partition: str | None = None
    """Where Slurm puts it, if it said so."""

    @property
    def nodes(self) -> int:
        return int(self.resources.get("nodes") or 1)

    @property
    def gpus(self) -> int:
        """All its GPUs."""
        return gpus(self.resources)

    @property
    def cores(self) -> int:
        tasks, each = (int(self.resources.get(key) or 1) for key in ("tasks_per_node", "cpus_per_task"))
        return self.nodes * tasks * each

    @property
    def minutes(self) -> int:
        return int(self.resources.get("runtime") or 0)

    @property
    def queue(self) -> tuple[str | None, str | None]:
        """Partition and QOS; None: the default one."""
        return self.partition or self.resources.get("slurm_partition"), self.resources.get("qos")

    def __str__(self) -> str:
        on_a_node = self.gpus // self.nodes
        return f"{self.what} ({self.nodes} x {on_a_node} GPUs)" if on_a_node else f"{self.what} ({self.nodes} nodes)"


def gpus(resources: Any) -> int:
    """Return the GPUs of a job with these resources, a mapping; 0 if it requests none."""
    words = [str(resources.get("gres") or ""), *str(resources.get("slurm_extra") or "").split()]
    counts = [int(match[1]) for word in words if (match := GPUS.match(word))]
    return int(resources.get("nodes") or 1) * (counts[-1] if counts else 0)


def trainings(runs: Iterable[Run], site: Site) -> list[Request]:
    """Return a request of each kind that the trainings of ``runs`` make; empty for a site without Slurm."""
    if site.slurm is None:
        return []
    kinds: dict[tuple[int, int], Request] = {}
    for run in runs:
        size = stages.scope("train", run).size(run)
        if size not in kinds:
            kinds[size] = Request(f"{run.strategy} x {run.workload}", slurm.resources(site, "train", *size))
    return list(kinds.values())


def sbatch(resources: Mapping[str, Any], name: str = "shardlab", log: str = "/dev/null") -> list[str]:
    """Return the words of the sbatch command with which Snakemake's plugin submits a job of this name."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    job = _Job(resources)
    named = {
        option: f" {flag} {shlex.quote(str(resources[key]))}" if key in resources else ""
        for option, flag, key in (("account", "-A", "slurm_account"), ("partition", "-p", "slurm_partition"))
    }
    fixed = {"run_uuid": name, "slurm_logfile": log, "comment_str": "shardlab", "workdir": None}
    return shlex.split(f"{get_submit_command(job, fixed | named)} {set_gres_string(job)}")


class _Job:
    """What the plugin asks a Snakemake job for."""

    threads = 1

    def __init__(self, resources: Mapping[str, Any]) -> None:
        self.resources = _Resources(resources)


class _Resources(dict[str, Any]):
    __getattr__ = dict.__getitem__
