"""The bill of a project's folder: what its jobs requested and used, by Slurm's accounting."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.errors import UserError
from shardlab.runs import slurm_accounting, stages
from shardlab.runs.slurm import use_cluster
from shardlab.runs.slurm_accounting import Start
from shardlab.settings import load, resolve, variants
from shardlab.settings.config import Config
from shardlab.settings.sites import Slurm
from shardlab.settings.types import Run

HOUR = 3600.0
OF_A_RUN = ("train", "evaluate", "compare", "capture", "plan_run", "export")
"""Rules whose jobs belong to a strategy."""
HOW = (
    "From Slurm's accounting (sacct), of all jobs that calls in this folder submitted. Used: time from a job's start "
    "to its end, times its devices. Requested: the time limit of each start, times its devices. Failed, a part of what "
    "was used: of starts that failed, were cancelled or preempted, or ran out of time; a training goes on from its "
    "checkpoint. Charged: what was used, by `billing` of the site's file."
)
NONE = "Slurm's accounting (sacct) has no jobs of this folder, or this machine has no accounting."
NO_SLURM = "Site {} has no `slurm:` section; name the one of the jobs: shardlab bill --config site=NAME."


def bill(config: Config, results: Path) -> str:
    """Format the bill of all jobs that Slurm accounted for in this folder, as results/bill.md.

    Raises:
        UserError: the site of the configuration has no Slurm.
    """
    site = load.site(config).slurm
    if site is None:
        raise UserError(NO_SLURM.format(config.site))
    use_cluster(site)
    rows = table(resolve.matrix(config)[0], slurm_accounting.starts(results.resolve().parent) or (), site)
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]] if rows else []
    return "\n".join(["# Bill", "", *(f"| {' | '.join(row)} |" for row in lines), "", HOW if rows else NONE, ""])


def table(runs: Iterable[Run], starts: Iterable[Start], site: Slurm) -> list[list[str]]:
    """Sum up hours by stage and strategy: the heads of the columns, then the lines, the last one the sum of all; empty
    without starts.
    """
    by_name = {f"{run.strategy}_{run.workload}": run for run in runs}
    uses = pd.DataFrame([_use(start, by_name.get(start.wildcards), site) for start in starts])
    if uses.empty:
        return []
    sums = uses.groupby(["stage", "strategy"], sort=False).sum(min_count=1).reset_index()
    every = uses.assign(stage="all", strategy="").groupby(["stage", "strategy"]).sum(min_count=1).reset_index()
    unit = "GPU" if site.gpus else "core"
    heads = ["stage", "strategy", "jobs", f"requested {unit}-hours", "used", "failed", f"charged {site.unit}"]
    return [heads, *([*row[:2], *map(_number, row[2:])] for row in pd.concat([sums, every]).to_numpy().tolist())]


def _use(start: Start, run: Run | None, site: Slurm) -> dict[str, Any]:
    """One start of a job: devices times hours, and the charge in the site's unit."""
    devices = start.allocated("gres/gpu" if site.gpus else "cpu")
    if devices is None:  # a cluster may not account for GPUs
        nodes, ranks = stages.scope(start.rule, run).size(run) if run and start.rule in stages.STAGES else (1, 1)
        devices = nodes * ranks
    hours, limit = start.seconds / HOUR, start.limit_seconds
    strategy = run.strategy if run else start.wildcards.rsplit("_", 1)[0]
    billing, cores = site.billing_of(start.values["Partition"], start.values["QOS"]), start.allocated("cpu") or 0
    return {
        "stage": start.rule,
        "strategy": variants.base(strategy) if start.rule in OF_A_RUN else "",
        "jobs": 1,
        "requested": None if limit is None else devices * limit / HOUR,
        "used": devices * hours,
        "failed": devices * hours * start.failed,
        "charged": billing.charge(hours, gpus=devices, nodes=start.nodes, cores=cores),
    }


def _number(hours: float) -> str:
    """Format hours with three digits, or all digits before the decimal point."""
    if pd.isna(hours):
        return ""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
