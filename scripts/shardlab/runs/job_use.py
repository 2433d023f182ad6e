"""What the jobs of a project's folder used, by Slurm's accounting."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from shardlab.report.bill import HOUR, Bill, Use, bill
from shardlab.runs import slurm_accounting, stages
from shardlab.runs.slurm import use_cluster
from shardlab.runs.slurm_accounting import Start
from shardlab.settings import load, resolve, variants
from shardlab.settings.config import Config
from shardlab.settings.sites import Slurm
from shardlab.settings.types import Run

OF_A_RUN = ("train", "evaluate", "compare", "capture", "plan_run", "export")
"""Rules whose jobs belong to a strategy."""


def bill_of(config: Config, results: Path) -> Bill:
    """Return the bill of all jobs that Slurm accounted for in this folder, with the sizes of a call's runs."""
    slurm = load.site(config).slurm
    if slurm is None:
        return bill([], "", "")
    use_cluster(slurm)
    unit = "GPU" if slurm.gpus else "core"
    return bill(uses(resolve.matrix(config)[0], results, slurm), unit, slurm.unit)


def uses(runs: Iterable[Run], results: Path, site: Slurm) -> Iterator[Use]:
    """Yield each start of a job. ``results`` is a folder of the project's folder."""
    by_name = {f"{run.strategy}_{run.workload}": run for run in runs}
    for start in slurm_accounting.starts(results.resolve().parent) or ():
        run = by_name.get(start.wildcards)
        strategy = run.strategy if run else start.wildcards.rsplit("_", 1)[0]
        devices = _devices(start, run, "gres/gpu" if site.gpus else "cpu")
        billing = site.billing_of(start.values["Partition"], start.values["QOS"])
        cores = start.allocated("cpu") or 0
        yield Use(
            start.rule,
            variants.base(strategy) if start.rule in OF_A_RUN else "",
            devices,
            billing.charge(start.seconds / HOUR, gpus=devices, nodes=start.nodes, cores=cores),
            start.seconds,
            start.limit_seconds,
            start.failed,
        )


def _devices(start: Start, run: Run | None, resource: str) -> int:
    devices = start.allocated(resource)
    if devices is None:  # a cluster may not account for GPUs
        nodes, ranks = stages.scope(start.rule, run).size(run) if run and start.rule in stages.STAGES else (1, 1)
        devices = nodes * ranks
    return devices
