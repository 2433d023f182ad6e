"""The bill of a project's folder: what its jobs requested and used, by Slurm's accounting (sacct)."""

import math
import re
import shutil
from collections import Counter
from pathlib import Path

from shardlab.errors import UserError
from shardlab.runs import slurm
from shardlab.runs.slurm_reattach import name_of
from shardlab.settings import load
from shardlab.settings.config import Config
from shardlab.settings.sites import Slurm

LOGS = Path(".snakemake/slurm_logs")
"""Where the Slurm plugin leaves rule_RULE/WILDCARDS/JOB.log: all of a folder's jobs."""
FIELDS = ("JobID", "JobName", "State", "Partition", "QOS", "AllocTRES", "NNodes", "ElapsedRaw", "TimelimitRaw")
PACK_JOB = "shardlab-pack"
"""Name of the allocations that runs share (cli/pack.py)."""
AT_ONCE = 500
"""Jobs to ask for at a time."""
HOW = (
    "From Slurm's accounting (sacct), of all jobs that calls in this folder submitted. Used: time from a job's start "
    "to its end, times its {0}s. Requested: the time limit of each start, times its {0}s. Failed, a part of what was "
    "used: of starts that failed, were cancelled or preempted, or ran out of time; a training goes on from its "
    "checkpoint. Charged: what was used, by `billing` of the site's file."
)
NONE = "Slurm's accounting (sacct) has no jobs of this folder, or this machine has no accounting."
Start = dict[str, str]
"""One start of a job, of which a requeued one has several: fields of sacct, and its `stage`."""


def bill(config: Config, folder: Path) -> str:
    """Format the bill of all jobs that Slurm accounted for in a project's folder: a line per stage, and their sum.

    Raises:
        UserError: the site of the configuration has no Slurm.
    """
    site = load.site(config).slurm
    if site is None:
        raise UserError(
            f"site {config.site} has no `slurm:` section; name the one of the jobs: shardlab bill --config site=NAME."
        )
    found = starts(folder)
    if not found:
        return NONE
    unit = "GPU" if any(_allocated(start, "gres/gpu") for start in found) else "core"
    sums: dict[str, Counter[str]] = {}
    for start in found:
        for stage in (start["stage"], "all"):
            sums.setdefault(stage, Counter()).update(_hours(start, unit, site))
    sums["all"] = sums.pop("all")
    heads = ["stage", "jobs", f"requested {unit}-hours", "used", "failed", f"charged {site.unit}"]
    lines = [heads, ["---"] * len(heads), *([stage, *map(_number, each.values())] for stage, each in sums.items())]
    return "\n".join(["# Bill", "", *(f"| {' | '.join(line)} |" for line in lines), "", HOW.format(unit)])


def starts(folder: Path) -> list[Start]:
    """Return every start of the jobs that calls in a project's folder submitted; empty without accounting."""
    stages = {path.stem: path.relative_to(folder / LOGS).parts[0] for path in (folder / LOGS).glob("*/**/*.log")}
    stages |= {path.stem.removeprefix("pack-"): "pack" for path in (folder / "results/logs").glob("pack-*.log")}
    numbers = sorted(filter(str.isdigit, stages), key=int)
    found = []
    for first in range(0, len(numbers) if shutil.which("sacct") else 0, AT_ONCE):
        words = ["sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", f"--format={','.join(FIELDS)}"]
        lines = slurm.answer_or_none([*words, f"--jobs={','.join(numbers[first : first + AT_ONCE])}"]) or ""
        found += [dict(zip(FIELDS, line.split("|"), strict=True)) for line in filter(None, lines.splitlines())]
    # A number may belong to a job of another cluster's database, or of before its numbers began again.
    names = (name_of(folder), PACK_JOB)
    return [
        start | {"stage": stages[start["JobID"]].removeprefix("rule_")}
        for start in found
        if start["JobID"] in stages and start["JobName"] in names
    ]


def _hours(start: Start, unit: str, site: Slurm) -> dict[str, float]:
    """Return the columns of a start: hours of its devices, and the charge in the site's unit; NaN: unknown."""
    gpus, cores = float(_allocated(start, "gres/gpu")), _allocated(start, "cpu")
    if site.gpus and unit == "core":  # a cluster may not account for GPUs
        gpus = math.nan
    devices, hours = gpus if unit == "GPU" else cores, float(start["ElapsedRaw"] or 0) / 3600
    limit = float(start["TimelimitRaw"]) / 60 if start["TimelimitRaw"].isdigit() else math.nan
    billing = site.billing_of(start["Partition"], start["QOS"])
    return {
        "jobs": 1,
        "requested": devices * limit,
        "used": devices * hours,
        "failed": devices * hours * (not start["State"].startswith(("COMPLETED", *slurm.LIVE))),
        "charged": billing.charge(hours, gpus=gpus, nodes=int(start["NNodes"] or 0), cores=cores),
    }


def _allocated(start: Start, resource: str) -> int:
    """Return the allocated number of gres/gpu or cpu; 0 if the cluster does not account for it."""
    found = re.findall(rf"(?:^|,){resource}(:\w+)?=(\d+)", start["AllocTRES"])
    plain = [each for each in found if not each[0]] or found
    return sum(int(count) for _, count in plain)


def _number(hours: float) -> str:
    """Format hours with three digits, or all digits before the decimal point; unknown ones as an empty cell."""
    if math.isnan(hours):
        return ""
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
