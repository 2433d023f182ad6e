"""Shell lines that start a program at a site: srun, image and torchrun, as far as each is needed.

srun starts something once per node, inside a Slurm job, or else this machine's shell does. torchrun starts the ranks of
a node from there (`shardlab fork_torchrun`). In the image, a command before the program or an option of srun starts it.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from shardlab.files import COMMAND, ROOT
from shardlab.runs import forks, slurm
from shardlab.runs.signals import STOP
from shardlab.runs.stages import Scope
from shardlab.settings.sites import ContainerExec, SiteRuntime, Srun
from shardlab.settings.types import Ranks, Run

PROJECT = Path.cwd()
"""Base of a call's relative paths: the repository, or the folder that snakemake --directory names."""
RENDEZVOUS = "RENDEZVOUS"
"""Environment variable with the address and port where the nodes of a job meet."""
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""NCCL's flight recorder: the last collectives of each rank, which a hang leaves in the run's folder (cli/train.py)."""


class Command(NamedTuple):
    """Command that starts a program at a site."""

    lines: str
    """Bash lines; they work on a job's first node, or on this machine for a site without srun."""
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

    They work on a job's first node, or on this machine for a site without srun, and can be run by hand.
    """
    site = run.site
    inside: list[str] = []
    options: list[str] = []
    python = sys.executable
    if site.container and image:
        inside, options = image_words(site.container, image)
        python = site.container.python
    words = [*map(shlex.quote, inside), shlex.quote(python), *_words(run, program, scope)]
    lines = [f"unset {' '.join(site.environment_clear)}"] if site.environment_clear else []
    lines += [f"export {key}={shlex.quote(value)}" for key, value in environment(site).items()]
    # Where srun starts the image, a node's lines run inside it: in its folder, and its variables win over the job's.
    on_node = [f"cd {shlex.quote(str(PROJECT))}", *lines] if options else []
    on_node += site.setup_commands
    on_node += [f'export {key}="{value}"' for key, value in site.environment_node.items()]
    on_node += ["exec " + " ".join(words)]
    if site.srun is None:
        return "\n".join([*lines, *on_node])
    nodes, per_node = scope.size(run)
    port = f"$(({site.srun.port_first} + SLURM_JOB_ID % 10000))"
    lines += [f'export {RENDEZVOUS}="{_address(site.srun)}:{port}"'] * (nodes > 1)
    # Nothing is inherited from the job: each number is given explicitly.
    step = ["srun", *slurm.packed_step(per_node), f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    step += [f"--cpus-per-task={per_node * site.cpus_per_rank}", "--kill-on-bad-exit=1", "--export=ALL"]
    step += [*site.srun.flags, *options, "bash", "-c", "\n".join(on_node)]
    return "\n".join([*lines, f"exec {shlex.join(step)}"])


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


def image_words(container: ContainerExec, image: str) -> tuple[list[str], list[str]]:
    """Return what starts a command inside the image: words before it, or options of srun; the site's words, filled in.

    The other list is empty.
    """
    binds = [*dict.fromkeys([str(PROJECT), str(ROOT)]), *container.binds]
    mounts = [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
    values = {"command": container.command, "project": str(PROJECT), "image": image}
    values |= {"binds": ",".join(binds), "mounts": ",".join(mounts)}
    filled = []
    for word in container.srun_options or container.exec_template:
        if word == "{flags}":
            filled += container.flags
        elif "{mount}" in word:
            filled += [word.format_map(values | {"mount": mount}) for mount in mounts]
        else:
            filled.append(word.format_map(values))
    return ([], filled) if container.srun_options else (filled, [])


def missing(container: ContainerExec) -> str | None:
    """Return what to do if the program that builds and starts images is not on the PATH; None if it is.

    Where srun starts images, no program is needed.
    """
    if container.srun_options or shutil.which(container.command):
        return None
    return (
        f"{container.command}, which builds and starts the image, was not found on {os.uname().nodename}; load its "
        "module before snakemake, set container.command in the site's file to its path, or set config key container to "
        "off"
    )


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
    return [
        *words,
        f"--nnodes={run.nodes}",
        "--rdzv-backend=c10d",
        '--rdzv-id="$SLURM_JOB_ID"',
        f'--rdzv-endpoint="${RENDEZVOUS}"',
        # torchrun's detection of the first node does not work with every host name (pytorch issue 73656).
        '--rdzv-conf="is_host=$((SLURM_NODEID == 0))"',
        f'--local-addr="{_address(site.srun)}"',
    ]


def _address(srun: Srun) -> str:
    """Return a shell expression for the address of the node that evaluates it, by the site's rule."""
    if srun.interface:
        return f'$(ip -4 -br address show dev {srun.interface} | grep -m 1 -oE "[0-9.]+/" | tr -d /)'
    return f"$(hostname -s){srun.suffix}" if srun.suffix else "$(hostname)"
