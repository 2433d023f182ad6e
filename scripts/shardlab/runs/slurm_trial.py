"""Whether Slurm would start a job, asked without submitting it (sbatch --test-only)."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardlab.runs import slurm
from shardlab.runs.slurm_request import Request, sbatch

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
            done = slurm.client([*words, "--test-only", "--wrap=true"])
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
