"""Run a call of Snakemake inside one Slurm job that has a whole node, whose GPUs
the runs share: for sites that bill whole nodes.

First the login node makes what needs a network (data sets, models, image), then
one job is submitted. At its time limit it saves and goes back into the queue.
Options that are not listed here go to Snakemake. Example:
shardlab pack --minutes 120 --config site=jureca -- all
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardlab.cli import positive
from shardlab.errors import UserError
from shardlab.runs import slurm, slurm_request, stages
from shardlab.settings import load
from shardlab.workflow.call_runs import CallRuns

LATE = 60
"""Seconds before the end of the trainings at which Snakemake starts no further jobs."""
SCRIPT = """#!/bin/bash
# The runs share the node of this job.
export {packed}=1
{driver} --cores {cores} --resources devices={devices} {call} &
driver=$!
# Slurm's warning: let Snakemake start nothing more; the trainings save and stop by themselves.
trap 'late=1; kill -TERM $driver' USR1
while kill -0 $driver 2>/dev/null; do wait $driver; status=$?; done
if [ -n "$late" ] && [ "$status" -ne 0 ] && {again}; then scontrol requeue "$SLURM_JOB_ID"; sleep 60; fi
exit "$status"
"""


def main() -> None:
    """Prepare, submit, and say where to look."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--minutes", type=positive, help="time limit of the job (slurm.runtime of the site)")
    parser.add_argument("--config", nargs="+", default=[], metavar="KEY=VALUE", help="as for Snakemake")
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="print the call of sbatch and the script, and stop"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="as for Snakemake (all)")
    args, options = parser.parse_known_args()
    given = ["--config", *args.config] if args.config else []
    targets = args.targets or ["all"]
    call = CallRuns(load.called_with(args.config), targets)
    words, script = submission(call, args.minutes, [*options, *given, "--", *targets])
    if args.dry_run:
        print(shlex.join(words), script, sep="\n\n")
        return
    if status := subprocess.run([*_snakemake("local"), *given, "--", "prefetch"]).returncode:
        sys.exit(status)
    Path("results/logs").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, input=script, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        raise UserError("sbatch refused the job; see its message above.")
    job = done.stdout.strip().split(";")[0]
    print(f"Job {job} runs everything; output: results/logs/pack-{job}.log. To look at it: watch shardlab status")


def _snakemake(profile: str) -> list[str]:
    return [str(Path(sys.executable).with_name("snakemake")), "--profile", f"workflow/profiles/{profile}"]


def submission(call: CallRuns, minutes: int | None, arguments: list[str]) -> tuple[list[str], str]:
    """Return the words of sbatch, and the script that it reads from its standard input.

    Raises:
        UserError: the site has no Slurm job to pack into, or a run of the call does not fit a node.
    """
    site = call.site
    if site.slurm is None or site.srun is None:
        raise UserError(f"site {call.config.site} has no slurm: and srun:, which packing runs into one job needs.")
    sizes = {
        f"{run.strategy} x {run.workload}": stages.scope("train", run).size(run) for run in call.requested.values()
    }
    per_node = most = site.ranks_per_node_max or max(size[1] for size in sizes.values())
    while per_node > 1 and not site.slurm.queue_for("train", 1, per_node):
        per_node -= 1
    for name, size in sizes.items():
        if size[0] > 1:
            raise UserError(f"{name} needs {size[0]} nodes, and a pack has one; run it with --profile slurm.")
        if size[1] > per_node:
            slurm.queue_for(site.slurm, "train", 1, most)
    requested = slurm.resources(site, "train", 1, per_node)
    requested["runtime"] = minutes or requested["runtime"]
    late = site.warning + LATE
    if 60 * requested["runtime"] <= late:
        raise UserError(
            f"{requested['runtime']} min are too short, as the last {late} s start nothing; raise --minutes."
        )
    words = slurm_request.sbatch(requested, "shardlab-pack", "results/logs/pack-%j.log")
    values: dict[str, Any] = {
        "packed": slurm.PACKED,
        "driver": shlex.join(_snakemake("allocation")),
        "cores": per_node * site.cpus_per_rank,
        "devices": per_node,
        "call": shlex.join(arguments),
        "again": "true" if site.slurm.requeue else "false",
    }
    return [*words, f"--signal=B:USR1@{late}"], SCRIPT.format_map(values)
