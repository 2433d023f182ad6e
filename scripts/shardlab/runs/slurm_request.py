"""What jobs request of Slurm and start there, the sbatch command that requests it, and what Slurm says of that."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from shardlab.files import COMMAND
from shardlab.runs import commands, slurm, stages
from shardlab.runs.stages import Scope
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.sites import Site, Slurm, Stage
from shardlab.settings.types import Run

PER_NODE = "--gpus-per-node="
OF_A_CALL: tuple[Stage, ...] = ("train", "evaluate", "init", "noise_floor")
"""Stages whose jobs have the size of a run."""
STARTED: dict[Stage, tuple[Scope, ...]] = {
    "preflight": (Scope.NODES, Scope.RANKS),
    "init": (Scope.ONE,),
    "plan": (Scope.ONE,),
    "train": (Scope.RANKS,),
    "noise_floor": (Scope.ONE,),
    "evaluate": (Scope.ONE,),
}
"""What a job of each stage starts: one process, one per node, the ranks. Others are like one of these: prove like init;
compare, diagnose and export like evaluate; capture like train.
"""
IMAGE = "containers/train.sif"
"""The image that the workflow builds, where the site's file names none."""
STARTS = re.compile(r" to start at \S+ using .* in partition (\S+)")
"""What sbatch --test-only says of a job that Slurm takes."""
BUSY = re.compile(r"\b(?:down|drained|reserved|busy)\b", re.IGNORECASE)
"""In refusals that are no fault of the request: the job would wait."""
LIMITS = re.compile(r"\b((?:MaxTime|PreemptMode|GraceTime)=\S+)|^((?:JobRequeue|KillWait|PreemptType)\s*= .*\S)", re.M)
"""What scontrol says of a partition, and of Slurm, that matters to a training: docs/cluster.md has what it means."""


@dataclass(frozen=True)
class Request:
    """A job."""

    what: str
    """Its name in a sentence."""
    resources: Mapping[str, Any]
    """What Snakemake passes to its Slurm plugin."""

    @property
    def nodes(self) -> int:
        return int(self.resources.get("nodes") or 1)

    @property
    def gpus(self) -> int:
        """All its GPUs."""
        return gpus_of(self.resources)

    @property
    def cores(self) -> int:
        tasks, each = (int(self.resources.get(key) or 1) for key in ("tasks_per_node", "cpus_per_task"))
        return self.nodes * tasks * each

    @property
    def minutes(self) -> int:
        return int(self.resources.get("runtime") or 0)

    def charge(self, site: Slurm) -> float:
        """Return what the site charges if the job takes all of its time limit."""
        billing = site.billing_of(*self.queue)
        return billing.charge(self.minutes / 60, gpus=self.gpus, nodes=self.nodes, cores=self.cores)

    @property
    def queue(self) -> tuple[str | None, str | None]:
        """Partition and QOS; None: the default one."""
        return self.resources.get("slurm_partition"), self.resources.get("qos")

    def __str__(self) -> str:
        on_a_node = self.gpus // self.nodes
        return f"{self.what} ({self.nodes} x {on_a_node} GPUs)" if on_a_node else f"{self.what} ({self.nodes} nodes)"


def gpus_of(resources: Any) -> int:
    """Return the GPUs of a job with these resources, a mapping; 0 if it requests none."""
    listed = [word.partition(":") for word in str(resources.get("gres") or "").split(",")]
    flags = str(resources.get("slurm_extra") or "").split()
    named = [rest for name, _, rest in listed if name == "gpu"]
    named += [word.removeprefix(PER_NODE) for word in flags if word.startswith(PER_NODE)]
    # As Slurm has it: TYPE:NUMBER, one of them, or neither; a type may have any other characters.
    numbers = [text.rpartition(":")[2] for text in named]
    counts = [int(number) if number.isdigit() else 1 for number in numbers]
    return int(resources.get("nodes") or 1) * (counts[-1] if counts else 0)


def jobs_of(runs: Iterable[Run], site: Site) -> list[Request]:
    """Return the requests of the jobs that a call of ``runs`` makes; empty for a site without Slurm."""
    found = []
    for run, stage in product(runs, OF_A_CALL if site.slurm else ()):
        size = stages.scope(stage, run).size(run)
        resources = slurm.resources(site, stage, *size, stages.MINUTES.get(stage))
        found.append(Request(f"{stage} of {run.strategy} x {run.workload}", resources))
    return found


def sentence(requests: Iterable[Request], what: str, site: Slurm | None, tries: int = 1) -> str:
    """Return what jobs request, in one sentence; empty without jobs. ``tries``: how often Snakemake submits one that
    fails.
    """
    listed = list(requests)
    if not listed or site is None:
        return ""
    gpus = sum(request.minutes * request.gpus for request in listed) / 60
    charged = sum(request.charge(site) for request in listed)
    amount = f"{charged:,.1f} {site.unit}"
    if gpus and (gpus, "GPU-hours") != (charged, site.unit):
        amount = f"{gpus:,.1f} GPU-hours, charged as {amount}"
    again = f"; {tries * charged:,.1f} {site.unit} if every job is tried {tries} times" * (tries > 1)
    jobs = f"{len(listed):,} job{'s' * (len(listed) != 1)}"
    return f"{what} request at most {amount}: the time limits of {jobs}{again}."


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


def trial(requests: Iterable[Request]) -> tuple[list[str], list[str]]:
    """Ask Slurm about the job with the most GPUs, or nodes, of each partition and QOS.

    Returns:
        When each would start, and the limits of the partitions that they go to; what Slurm refuses: in its own words.
    """
    said, wrong, partitions = list[str](), list[str](), set[str]()
    largest = {each.queue: each for each in sorted(requests, key=lambda each: (each.gpus, each.nodes))}
    for request in largest.values() if shutil.which("sbatch") else ():
        words = sbatch(request.resources)
        try:
            done = slurm.client([*words, "--test-only", "--wrap=true"])
        except (OSError, subprocess.TimeoutExpired) as error:
            return [*said, f"start: unknown, because sbatch does not answer ({error})"], wrong
        text = " ".join((done.stdout + done.stderr).split())
        if found := STARTS.search(text):
            said.append(f"start: {request}: {text}")
            partitions.add(found[1])
        elif BUSY.search(text):
            said.append(f"start: unknown for {request}: {text}")
        else:
            wrong.append(
                f"Slurm refuses {request}: {text.rstrip('.')}; the keys that say what is requested are nodes, "
                "ranks_per_node and cpus_per_rank, and in `slurm` of the site's file account, queues, partition, qos, "
                f"constraint, gpus, gpu_type, memory_mb_per_rank and runtime. It was asked: {shlex.join(words)}"
            )
    for name in sorted(partitions):
        shown = [slurm.answer_or_none(["scontrol", "show", *what]) or "" for what in (("partition", name), ("config",))]
        limits = [" ".join("".join(match).split()) for match in LIMITS.findall("\n".join(shown))]
        said.append(f"limits of {name}: {', '.join(limits) or 'unknown'}")
    return said, wrong


def lines(config: Config, site: Site) -> str:
    """Return what a call of this size requests and starts: the sbatch line of each stage's job, and its script.

    Stages that share a line share it here, too.

    Raises:
        UserError: no queue of the site takes a job of this size.
    """
    run, found = resolve.ranks(config), dict[str, list[str]]()
    image = (site.container.image or IMAGE) if site.container.enabled else None
    for stage, scopes in STARTED.items() if site.slurm else ():
        resources = slurm.resources(site, stage, *scopes[-1].size(run), stages.MINUTES.get(stage))
        found.setdefault(shlex.join(sbatch(resources, "NAME", "LOG")), []).append(stage)
    for stage, scopes in STARTED.items():
        for scope in scopes:
            script = commands.lines(run, [str(COMMAND), "STAGE", "--settings=run.json"], image, scope)
            found.setdefault(script, []).append(f"{stage} ({scope.name.lower()})")
    return "\n\n".join(f"# {', '.join(them)}\n{line}" for line, them in found.items())


class _Job:
    """What the plugin asks a Snakemake job for."""

    threads = 1

    def __init__(self, resources: Mapping[str, Any]) -> None:
        self.resources = _Resources(resources)


class _Resources(dict[str, Any]):
    __getattr__ = dict.__getitem__
