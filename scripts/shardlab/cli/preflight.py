"""Check a site before long runs: the login node, each node of a job, all ranks of a job; the target preflight of
Snakemake does that. Problems are printed with their remedies, and end the program with status 1.

Example: shardlab preflight -n --config site=engaging nodes=2
"""

import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import ROOT, flock, write_text
from shardlab.runs import commands, gpus, slurm, slurm_request
from shardlab.runs.slurm_request import Request, jobs_of
from shardlab.settings import load, resolve
from shardlab.settings.config import Config
from shardlab.settings.types import Ranks, read_ranks

PACKAGES = ("torch", "deepspeed", "numpy", "safetensors", "tokenizers", "pydantic")
SPACE = 2 * 2**30
"""Bytes that should be free for results: weights and metrics of a default matrix take a fraction of it."""
PATIENCE = 30
"""Seconds in which the nodes of a job have to find each other."""

Found = tuple[list[str], list[str]]
"""What there is, and what is wrong, as sentences."""


@program
def main(
    config: Config,
    dry_run: Annotated[bool, "print the sbatch line and the script of every stage's job; submit nothing"] = False,
) -> int:
    """Print the lines."""
    if not dry_run:
        raise UserError("you want -n, or the target preflight: snakemake --profile slurm -- preflight.")
    print(slurm_request.lines(config, load.site(config)))
    return 0


def report(found: Found, output: Path) -> int:
    """Write what there is, or print it and what is wrong; return the status."""
    said, wrong = found
    if wrong:
        print(*said, *(f"wrong: {problem}" for problem in wrong), sep="\n", file=sys.stderr)
        return 1
    write_text(output, "".join(f"{sentence}\n" for sentence in said))
    return 0


@program
def preflight_login(settings: Path, config: Config, output: Path) -> int:
    """Check the machine that Snakemake runs on, and what Slurm would do with the jobs of a call."""
    run = read_ranks(settings)
    df = subprocess.run(["df", "-h", "--output=fstype,avail,target", ROOT], capture_output=True, text=True).stdout
    places = [line.split(maxsplit=2) for line in df.splitlines()[1:]]
    said = [f"folder: {ROOT} is on {kind}, mounted at {point}, with {free} free" for kind, free, point in places]
    problems = storage(ROOT / "results")
    for name in ("sbatch", "squeue", "srun") if run.site.srun else ():
        if shutil.which(name) is None:
            problems.append(f"{name} was not found on {socket.gethostname()}; load its module, then try again")
    if run.site.container and (reason := commands.missing(run.site.container)):
        problems.append(reason)
    about_slurm, wrong = queues(run, config)
    return report((said + about_slurm, problems + wrong), output)


def queues(run: Ranks, config: Config) -> Found:
    """Return what Slurm does with the jobs of a call, and what it would refuse; empty without Slurm."""
    site = load.site(config)
    if site.slurm is None:
        return [], []
    size = run.nodes, run.devices_per_node
    checks = Request("preflight", slurm.resources(site, "preflight", *size, 10))
    full = Request("a training", slurm.resources(site, "train", *size))
    return slurm_request.trial([checks, full, *jobs_of(resolve.matrix(config)[0], site)])


@program
def preflight_nodes(settings: Path, output: Path) -> int:
    """Check each node of a job."""
    found = nodes(read_ranks(settings))
    return report(found, output) if found else 0


def nodes(run: Ranks) -> Found | None:
    """Run one process per node. The first one returns what all found, received over the port of the rendezvous."""
    said, wrong = one_node(run)
    if run.nodes == 1:
        return said, wrong
    host, _, port = os.environ[commands.RENDEZVOUS].rpartition(":")
    try:
        socket.getaddrinfo(host, port)
    except socket.gaierror:
        address = (
            f"{socket.gethostname()}: no address is known for {host}, where nodes should meet; set srun.suffix or "
            "srun.interface in the site's file so that the name is one that nodes know"
        )
        return said, [*wrong, address]
    if os.environ.get("SLURM_NODEID") != "0":
        tell(host, int(port), (said, wrong))
        return None
    others = hear(int(port), run.nodes - 1)
    for more_said, more_wrong in others:
        said, wrong = said + more_said, wrong + more_wrong
    if missing := run.nodes - 1 - len(others):
        wrong.append(
            f"{missing} of {run.nodes} nodes did not reach {host}:{port} within {PATIENCE} s; set srun.suffix "
            "or srun.interface in the site's file so that nodes meet on a network that carries them, or "
            "srun.port_first to a port that is open between nodes"
        )
    return said, wrong


def one_node(run: Ranks) -> Found:
    """Check this node, from inside the image if the site has one."""
    name = socket.gethostname()
    wrong = storage(ROOT / "results") + storage(Path(tempfile.gettempdir()), 2**26)
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"Python has no {package}; rebuild the image, or install envs/train.txt where there is none")
    names: list[str] = []
    if "torch" in versions and run.site.device == "cuda":
        names, problems = visible(run.devices_per_node)
        wrong += problems
    driver = "".join(f", driver {gpu.driver}" for gpu in gpus.listed()[:1])
    about = (
        f"node {name}: Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores, "
        f"GPUs {names or 'none'} (Slurm gave {os.environ.get('SLURM_GPUS_ON_NODE') or 0}{driver})"
    )
    installed = ", ".join(f"{package} {version}" for package, version in versions.items())
    return [about, f"  {installed}"], [f"{name}: {problem}" for problem in wrong]


def visible(needed: int) -> tuple[list[str], list[str]]:
    """Return the names of the GPUs that PyTorch sees on this node, and a sentence for each problem with them."""
    import torch

    from shardlab.runtime import device

    listed, version = gpus.listed(), torch.version
    count = torch.accelerator.device_count()
    wrong = [gpus.other_torch(torch.__version__, rocm=version.hip is not None), gpus.old_driver(listed, version.cuda)]
    if count < needed and wrong[1] is None:
        cause = gpus.why_missing(version.cuda, version.hip)
        wrong.append(f"PyTorch sees {count} GPUs and the run needs {needed}: {cause}")
    names = [device.name(device.accelerator(number)) for number in range(count)]
    return names, [*filter(None, wrong)]


def storage(folder: Path, space: int = SPACE) -> list[str]:
    """Check that a folder is writable, has locks and ``space`` free bytes; return a sentence for each problem."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight.") as file:
            flock(file)
            free = shutil.disk_usage(folder).free
    except UserError as error:
        return [str(error).removesuffix(".")]
    except OSError as error:
        return [
            f"{folder} cannot be written to ({error.strerror}); put it on a file system that all nodes can write to"
        ]
    if free < space:
        return [f"{folder} has {free / 2**20:.0f} MiB free, but needs {space / 2**20:.0f} MiB; free some space there"]
    return []


def hear(port: int, others: int) -> list[Found]:
    """Return what the other nodes found, as far as they reported."""
    heard: list[Found] = []
    end = time.monotonic() + PATIENCE
    with socket.create_server(("", port), backlog=others) as server:
        while len(heard) < others and (left := end - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                break
            with connection, connection.makefile() as file:
                heard.append(json.loads(file.readline()))
    return heard


def tell(host: str, port: int, found: Found) -> None:
    """Send what this node found to the first node, which may start later."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(json.dumps(found).encode() + b"\n")
                return
        except OSError:
            time.sleep(0.5)


@program
def preflight_ranks(settings: Path, output: Path) -> int:
    """Check that every collective gives the right result over all ranks, started as in a training run."""
    from shardlab.measure.collectives import wrong
    from shardlab.runtime import device, distributed

    run = read_ranks(settings)

    log = Path(tempfile.gettempdir()) / f"shardlab-preflight-nccl.{os.getpid()}"
    logged = run.site.device == "cuda" and run.nodes > 1 and gpus.log_nccl_to(log)
    distributed.start(run.site, timeout_seconds=4 * PATIENCE)
    world = distributed.world(run)
    problems = [
        f"{name} over {world.size} ranks gives wrong numbers; check NCCL's environment variables in the site's file"
        for name in wrong(world)
    ]
    hosts = world.gather(socket.gethostname())
    least = min((size for size in world.gather(device.memory(world.device)) if size), default=None)
    network = gpus.network(log.read_text(errors="replace")) if logged and log.exists() else None
    log.unlink(missing_ok=True)
    said = [network] if network else []
    if not problems:
        said.append(f"ranks on {', '.join(hosts)}: all collectives are correct")
        if least:
            said.append(f"  for plans, in `hardware` of the site's file: device_memory_gib: {least / 2**30:.3g}")
        said.append(f"preflight: site {run.site_name} is ready for {run.nodes} x {run.ranks_per_node} ranks.")
    status = report((said, problems), output) if world.is_rank0 else 0
    if not status:
        distributed.finish()
    return status
