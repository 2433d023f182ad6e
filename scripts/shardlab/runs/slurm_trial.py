"""Whether Slurm would start a job, asked without submitting it (sbatch --test-only)."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace

from shardlab.runs import slurm
from shardlab.runs.slurm_accounts import Answer
from shardlab.runs.slurm_request import Request, sbatch

START = re.compile(r"to start at (\S+) using .* in partition (\S+)")
BUSY = re.compile(r"\b(down|drained|reserved|busy)\b", re.IGNORECASE)
"""Refusals that are no fault of the request."""


def largest_of_each_queue(requests: Iterable[Request]) -> list[Request]:
    """Return the request with the most GPUs, or nodes, of each partition and QOS."""
    largest: dict[tuple[str | None, str | None], Request] = {}
    for request in sorted(requests, key=lambda each: (each.gpus, each.nodes)):
        largest[request.queue] = request
    return list(largest.values())


def trial(requests: Iterable[Request]) -> tuple[list[Request], Answer]:
    """Ask when the largest job of each queue would start; return the requests, with the partitions that they go to."""
    requests, answer = list(requests), Answer()
    if shutil.which("sbatch") is None:
        return requests, answer
    placed: dict[tuple[str | None, str | None], str] = {}
    for request in largest_of_each_queue(requests):
        words = sbatch(request.resources)
        try:
            done = slurm.client([*words, "--test-only", "--wrap=true"])
        except (OSError, subprocess.TimeoutExpired) as error:
            answer.said.append(f"start: unknown, because sbatch does not answer ({error})")
            break
        text = done.stdout + done.stderr
        if found := START.search(text):
            placed[request.queue] = found[2]
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
    return [replace(each, partition=placed.get(each.queue)) for each in requests], answer
