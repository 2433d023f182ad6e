"""What Slurm says before a job is submitted: whether it would start, what limits and preemption do to a training."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardlab.runs.slurm import answer_or_none, client, seconds
from shardlab.runs.slurm_request import Request, sbatch
from shardlab.settings.sites import Site

NO_WORD = (
    "it is killed without notice, so steps after the last checkpoint are repeated: "
    "set recipe.checkpoint_interval_minutes"
)
ENDS = "ends, and Snakemake submits it again (preemptible-retries)"
START = re.compile(r"to start at (\S+) using .* in partition (\S+)")
BUSY = re.compile(r"\b(down|drained|reserved|busy)\b", re.IGNORECASE)
"""Refusals that are no fault of the request."""

Queue = tuple[str | None, str | None]


@dataclass
class Answer:
    """What Slurm says of jobs."""

    said: list[str] = field(default_factory=list)
    """Sentences."""
    wrong: list[str] = field(default_factory=list)
    """Sentences on what it would refuse."""
    placed: dict[Queue, str] = field(default_factory=dict)
    """The partition that jobs of a partition and QOS go to."""


def trial(requests: Iterable[Request]) -> Answer:
    """Ask when the job with the most GPUs, or nodes, of each partition and QOS would start."""
    answer = Answer()
    if shutil.which("sbatch") is None:
        return answer
    largest = {each.queue: each for each in sorted(requests, key=lambda each: (each.gpus, each.nodes))}
    for queue, request in largest.items():
        words = sbatch(request.resources)
        try:
            done = client([*words, "--test-only", "--wrap=true"])
        except (OSError, subprocess.TimeoutExpired) as error:
            answer.said.append(f"start: unknown, because sbatch does not answer ({error})")
            break
        text = done.stdout + done.stderr
        if found := START.search(text):
            answer.placed[queue] = found[2]
            answer.said.append(f"start: {request}, the largest job for {found[2]}, would start at {found[1]}")
            continue
        reason = (text.strip().splitlines() or [f"status {done.returncode}"])[-1]
        reason = reason.removeprefix("allocation failure: ").removeprefix("sbatch: error: ").rstrip(".")
        if BUSY.search(reason):
            answer.said.append(f"start: unknown for {request}: {reason}")
        else:
            answer.wrong.append(
                f"Slurm refuses {request}: {reason}; change nodes, ranks_per_node, cpus_per_rank, or account, "
                "partition, gpus, gpu_type, memory_mb_per_rank or queues of `slurm` in the site's file. It was asked: "
                f"{shlex.join(words)}"
            )
    return answer


def policy(site: Site, nodes: int, gpus_per_node: int, placed: str | None = None) -> tuple[list[str], list[str]]:
    """Return (effects of the site's limits on a training of this size, problems in the site's file), as sentences.

    ``placed``: the partition that Slurm chooses, where QOS or constraint decide. Empty without Slurm, or if it does not
    know the partition; a sentence if it does not answer.
    """
    if site.slurm is None or shutil.which("scontrol") is None:
        return [], []
    queue = site.slurm.queue_for("train", nodes, gpus_per_node)
    if queue is None:
        return [], []
    named = queue.partition or placed
    shown = answer_or_none(["scontrol", "--oneliner", "show", "partition", *([named] if named else [])])
    configured = answer_or_none(["scontrol", "show", "config"]) if shown is not None else None
    if shown is None or configured is None:
        return ["limits: unknown, because scontrol does not answer"], []
    partitions = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in shown.splitlines()]
    chosen = [each for each in partitions if each.get("PartitionName") == named or each.get("Default") == "YES"]
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", configured, re.MULTILINE))
    return means(site, site.slurm.minutes("train", queue), chosen[0], config) if chosen else ([], [])


def means(site: Site, runtime: int, partition: dict[str, str], config: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the same as ``policy``, for a time limit, a partition and a configuration as scontrol shows them."""
    assert site.slurm is not None
    slurm, name = site.slurm, partition["PartitionName"]
    said, wrong = [], []
    limited = seconds(partition.get("MaxTime", "UNLIMITED"))
    most = None if limited is None else int(limited // 60)
    if most is not None and runtime > most:
        wrong.append(f"partition {name} limits jobs to {most} min, but slurm.runtime is {runtime}; lower it to {most}")
    back = slurm.requeue and config.get("JobRequeue", "1") != "0"
    again = "is requeued under the same id, as often as it takes" if back else ENDS
    limit = f"of at most {most}" if most is not None else "without a partition limit"
    said.append(
        f"time: a training on {name} requests {runtime} min {limit}; {site.warning} s before the end it saves "
        f"and {again}"
    )
    mode = partition.get("PreemptMode") or config.get("PreemptMode", "OFF")
    grace = int(partition.get("GraceTime") or 0)
    if config.get("PreemptType", "preempt/none") == "preempt/none" or mode.startswith("OFF"):
        said.append(f"preemption: none on {name}")
    elif mode.startswith("SUSPEND"):
        said.append(f"preemption: a job on {name} is suspended and continues later; nothing is lost")
    else:
        reported = f"it is warned {grace} s before, and saves" if grace else NO_WORD
        then = again if mode.startswith("REQUEUE") else ENDS
        said.append(f"preemption: a job on {name} may be preempted ({mode}); {reported}; then it {then}")
    wait = re.match(r"\d+", config.get("KillWait", ""))
    if wait and site.stop_seconds >= int(wait[0]):
        said.append(
            f"scancel: Slurm kills what does not end after {wait[0]} s; "
            f"stop_seconds, now {site.stop_seconds}, should be less"
        )
    return said, wrong
