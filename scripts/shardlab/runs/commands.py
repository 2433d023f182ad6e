"""Shell lines that start a program at a site: launcher, image and torchrun, as far as each is needed."""

import shlex
import sys
from typing import NamedTuple

from shardlab.files import COMMAND
from shardlab.runs import container, forks, launchers
from shardlab.runs.signals import STOP
from shardlab.runs.stages import Scope
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Ranks, Run

RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""NCCL's flight recorder: the last collectives of each rank, which a hang leaves in the run's folder (cli/train.py)."""


class Command(NamedTuple):
    """Command that starts a program at a site."""

    lines: str
    """Bash lines; they work on a job's first node, or on this machine for a site without a launcher."""
    program: list[str] | None
    """Python's arguments in these lines, if a fork of this process can run the program directly."""


def command(run: Ranks, program: list[str], image: str | None, scope: Scope) -> Command:
    """Return the command that starts ``program`` (a script and its arguments).

    A fork of a server runs it directly on this machine's CPU, if no shell has to do anything first.
    """
    site = run.site
    needs_shell = image or site.srun or site.setup_commands or site.environment_node
    forked = None
    if site.device == "cpu" and not needs_shell and forks.is_fork(environment(site)):
        forked = shlex.split(" ".join(_words(run, program, scope)))
    return Command(lines(run, program, image, scope), forked)


def lines(run: Ranks, program: list[str], image: str | None, scope: Scope) -> str:
    """Return Bash lines that run ``program`` (a script and its arguments).

    They work on a job's first node, or on this machine for a site without a launcher, and can be run by hand.
    """
    nodes, per_node = scope.size(run)
    site = run.site
    python = site.container.python if site.container and image else sys.executable
    inside = container.exec_words(site.container, image) if site.container and image else []
    options = container.srun_words(site.container, image) if site.container and image else []
    words = [*map(shlex.quote, inside), shlex.quote(python), *_words(run, program, scope)]
    lines = [f"unset {' '.join(site.environment_clear)}"] if site.environment_clear else []
    lines += [f"export {key}={shlex.quote(value)}" for key, value in environment(site).items()]
    # Where srun starts the image, a node's lines run inside it: in its folder, and its variables win over the job's.
    on_node = [f"cd {shlex.quote(str(container.PROJECT))}", *lines] if options else []
    on_node += site.setup_commands
    on_node += [f'export {key}="{value}"' for key, value in site.environment_node.items()]
    on_node += ["exec " + " ".join(words)]
    return "\n".join([*lines, *launchers.lines(site, on_node, nodes, per_node, options)])


def environment(site: SiteRuntime) -> dict[str, str]:
    """Return the ranks' additional environment variables: no network, threads, memory, the site's variables."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    # Packages in a user's home would otherwise take precedence over those of the image.
    alone = {"PYTHONNOUSERSITE": "1"}
    # Snakemake sets all of these to the rule's threads, that is to the cores of all ranks together: every rank
    # would start that many threads, and two ranks on two cores run six times slower.
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(site.omp_threads or site.cpus_per_rank)
    )
    # Expandable segments leave less fragmentation if lengths differ (PyTorch's "CUDA semantics").
    of_gpus = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **RECORDER} if site.device == "cuda" else {}
    return offline | alone | threads | of_gpus | site.environment


def _words(run: Ranks, program: list[str], scope: Scope) -> list[str]:
    """Return Python's quoted arguments: the program's, preceded by torchrun's if needed."""
    quoted = [*map(shlex.quote, program)]
    if scope is Scope.RANKS and run.needs_torchrun:
        return [*_torchrun(run), *quoted]
    return quoted


def _torchrun(run: Ranks) -> list[str]:
    """Return torchrun's quoted arguments; the shell of each node fills in what differs between nodes."""
    site = run.site
    words = [shlex.quote(str(COMMAND)), "fork_torchrun"]
    if site.device == "cpu" and not (isinstance(run, Run) and run.script):
        # On a GPU ranks are separate processes: CUDA does not survive a fork, and torchrun itself queries GPUs.
        words += [f"--imports=shardlab.train.loop,shardlab.parallel.{run.engine_file},torch._dynamo"]
    words += [f"--nproc-per-node={run.ranks_per_node}"]
    # It forwards requests to stop to the ranks; an unhandled signal would kill it, and the ranks would train on.
    words += [f"--signals-to-handle={','.join(number.name for number in STOP)},SIGQUIT"]
    words += [f"--shutdown-timeout={site.stop_seconds}"]
    if run.nodes == 1:
        # A script of the user's knows nothing but MASTER_ADDR and MASTER_PORT.
        return [*words, "--standalone", *["--listen"] * bool(isinstance(run, Run) and run.script)]
    assert site.srun is not None, "resolve refuses several nodes without it"
    return [*words, f"--nnodes={run.nodes}", *launchers.rendezvous(site.srun)]
