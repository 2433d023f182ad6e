"""What the jobs of a project's folder used, by Slurm's accounting or by the times that the runs recorded."""

import time
from collections.abc import Iterable
from pathlib import Path

from shardlab.records import plan
from shardlab.records.reports import Attempt
from shardlab.report import snakemake_jobs
from shardlab.report.bill import Bill, Source, Use, bill, lost_seconds, seconds_of
from shardlab.runs import attempts, planned_hours, slurm_accounting, stages
from shardlab.runs.slurm_accounting import Start
from shardlab.settings import load, resolve, variants
from shardlab.settings.config import Config
from shardlab.settings.sites import Site
from shardlab.settings.types import Run

SLACK = 60.0
"""Seconds by which the clocks of a node and of Slurm's controller may differ."""
OF_A_RUN = ("train", "evaluate", "compare", "capture", "plan_run", "export")
"""Rules whose jobs belong to a strategy."""


def bill_of(config: Config, results: Path) -> Bill:
    """Return the bill of a call's runs, and of all jobs that Slurm accounted for in this folder."""
    runs, _ = resolve.matrix(config)
    used, source = uses(load.site(config), runs, results)
    planned = planned_hours.by_strategy(runs, lambda run: plan.find(run, *plan.places(results, run)))
    return bill(used, planned, source)


def uses(site: Site, runs: Iterable[Run], results: Path) -> tuple[list[Use], Source]:
    """Return each start of a job, and where that is from. ``results`` is a folder of the project's folder."""
    by_name = {f"{run.strategy}_{run.workload}": run for run in runs}
    folder = results.resolve().parent
    by_node = site.slurm is not None and site.slurm.billing == "node"
    if site.slurm is not None and (accounted := slurm_accounting.starts(folder)):
        unit = "GPU" if site.slurm.gpus else "core"
        text = "From Slurm's accounting (sacct), of all jobs that calls in this folder submitted."
        return [_accounted(start, by_name, results, gpus=unit == "GPU") for start in accounted], Source(
            unit, text, by_node
        )
    unit = "GPU" if site.device == "cuda" or (site.slurm and site.slurm.gpus) else "device"
    text = "From the times of the runs' own attempts and of Snakemake's finished jobs"
    text += ", because Slurm's accounting says nothing." if site.slurm else "; a device is a rank, or its accelerator."
    return [*_attempted(by_name.values(), results), *_finished(folder, by_name)], Source(unit, text, by_node)


def _accounted(start: Start, runs: dict[str, Run], results: Path, *, gpus: bool) -> Use:
    run = runs.get(start.wildcards)
    strategy = run.strategy if run else start.wildcards.rsplit("_", 1)[0]
    devices = start.allocated("gres/gpu" if gpus else "cpu")
    if devices is None:  # a cluster may not account for GPUs
        size = stages.scope(start.rule, run).size(run) if run and start.rule in stages.STAGES else (1, 1)
        devices = size[0] * size[1]
    lost = start.seconds if start.failed else 0.0
    end = min(start.span[1], time.time())
    if start.rule == "train" and run and (attempt := _attempt_in(start, results / run.strategy / run.workload)):
        lost = min(start.seconds, lost_seconds(attempt, end))
    elif start.rule == slurm_accounting.PACK:
        within = [(each, _attempt_in(start, results / each.strategy / each.workload)) for each in runs.values()]
        wasted = [_devices(each) * lost_seconds(attempt, end) for each, attempt in within if attempt]
        lost = min(start.seconds, sum(wasted) / max(1, devices))
    return Use(
        start.rule,
        variants.base(strategy) if start.rule in OF_A_RUN else "",
        devices,
        start.nodes,
        start.seconds,
        lost,
        start.limit_seconds,
        start.cpu_seconds,
        start.memory_bytes,
        start.joules,
    )


def _attempt_in(start: Start, folder: Path) -> Attempt | None:
    """Return the attempt that a start of a job made, if it got as far as one."""
    begin, end = start.span
    of_job = [attempt for attempt in attempts.history(folder) if attempt.slurm_job_id == start.job]
    within = [each for each in of_job if begin - SLACK <= seconds_of(each.began) <= end + SLACK]
    return min(within, key=lambda each: abs(seconds_of(each.began) - begin), default=None)


def _attempted(runs: Iterable[Run], results: Path) -> Iterable[Use]:
    """Yield the attempts at the trainings of ``runs``."""
    for run in runs:
        folder = results / run.strategy / run.workload
        for attempt in attempts.history(folder):
            begin = seconds_of(attempt.began)
            end = seconds_of(attempt.ended) if attempt.ended else time.time()
            log = folder / attempts.LOGS / f"{attempt.number:03d}.log"
            if attempt.why.startswith("lost") and log.exists():  # the next attempt recorded its end, maybe days later
                end = max(begin, min(end, log.stat().st_mtime))
            lost = min(end - begin, lost_seconds(attempt, end))
            yield Use("train", variants.base(run.strategy), _devices(run), run.nodes, end - begin, lost)


def _devices(run: Run) -> int:
    return run.nodes * run.devices_per_node


def _finished(folder: Path, runs: dict[str, Run]) -> Iterable[Use]:
    """Yield the finished jobs of other stages."""
    for job in snakemake_jobs.jobs(folder):
        if job.rule == "train" or job.rule not in stages.STAGES:
            continue
        of_run = Path(job.name).parent.relative_to("results") if job.name.startswith("results/") else Path()
        run = runs.get("_".join(of_run.parts)) if job.rule in OF_A_RUN else None
        nodes, devices = stages.scope(job.rule, run).size(run) if run else (1, 1)
        yield Use(job.rule, variants.base(run.strategy) if run else "", nodes * devices, nodes, job.end - job.start)
