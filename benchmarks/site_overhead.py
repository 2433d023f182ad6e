#!/usr/bin/env python3
"""Measure the overhead of a site: image build and size, PyTorch's start in the
image and in a venv, submit to first step.

Run it on the login node, in a checkout where `snakemake --profile slurm
--config site=NAME -- all` works.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT
from shardlab.launch import commands, slurm
from shardlab.launch.images import ImageReport, read_image
from shardlab.launch.stages import Scope
from shardlab.settings import load, resolve
from shardlab.settings.sites import Site
from shardlab.settings.types import Run

RUN = Path("results/ddp/llama2")
"""Run whose first step is waited for."""


def main() -> None:
    """Measure, and print one line per result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", required=True, help="a file in config/sites")
    parser.add_argument(
        "--repeats", type=int, default=5, help="repetitions of the short commands, of which the median is reported"
    )
    parser.add_argument("--only", choices=["image", "start", "submit"], help="one of the three measurements")
    args = parser.parse_args()
    os.chdir(ROOT)
    config = load.config(load.read_yaml(load.CONFIG / "config.yaml") | {"site": args.site})
    site, run = load.site(config), resolve.run(config, "ddp", "llama2")
    if site.slurm is None or not site.container.enabled or site.container.image:
        raise UserError(f"site {args.site} has no Slurm or builds no image; choose one that does, such as test.")
    prepared = ["results/init/llama2.safetensors", str(RUN / "run.json"), f"data/prepared/{run.data.name}/dataset.json"]
    quietly(*snakemake(args.site, "containers/train.image.json", *prepared))
    image = read_image(Path("containers/train.image.json"))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    with tempfile.TemporaryDirectory(dir="containers") as folder:
        if args.only in (None, "image"):
            images(site, Path(folder))
        if args.only in (None, "start"):
            starts(site, image, Path(folder), args.repeats)
    if args.only in (None, "submit"):
        submits(args.site, site, run, image, args.repeats)


def images(site: Site, folder: Path) -> None:
    """Measure build time and size of the image, by compression."""
    for compression in ("zstd", "gzip"):
        report = folder / f"{compression}.json"
        container = site.container.model_dump_json(include={"command", "base", "mirror"})
        words = ["--container", container, "--compression", compression, "--output", str(report)]
        quietly(sys.executable, "scripts/image.py", *words)
        built = ImageReport.model_validate_json(report.read_text(encoding="utf-8"))
        print(
            f"image build, {compression:<5} {built.build_seconds:7.1f} s  {(built.bytes or 0) / 1e6:6.0f} MB",
            flush=True,
        )


def starts(site: Site, image: ImageReport, folder: Path, repeats: int) -> None:
    """Measure `import torch` in the image, and in a venv with the same wheels, alternately."""
    quietly(sys.executable, "-m", "venv", str(folder / "venv"))
    pip = [str(folder / "venv/bin/pip"), "install", "--no-index", "--find-links", "containers/wheelhouse"]
    quietly(*pip, "-r", "envs/train.txt")
    importing = ["-c", "import torch"]
    inside = [site.container.command, "exec", *site.container.flags, str(image.path), site.container.python]
    compare(
        {
            "import torch, image": lambda: seconds(*inside, *importing),
            "import torch, venv": lambda: seconds(str(folder / "venv/bin/python"), *importing),
        },
        repeats,
    )


def submits(name: str, site: Site, run: Run, image: ImageReport, repeats: int) -> None:
    """Measure from the call to the first line of metrics.jsonl: Snakemake, and an equivalent sbatch script."""
    batch = RUN / "bench.sbatch"
    program = [
        "scripts/train.py",
        f"--settings={RUN}/run.json",
        f"--data=data/prepared/{run.data.name}",
        "--weights=results/init/llama2.safetensors",
        f"--output={RUN}",
    ]
    requested = slurm.resources(site, "train", run.nodes, run.devices_per_node)
    options = {
        "nodes": requested["nodes"],
        "ntasks-per-node": requested["tasks_per_node"],
        "cpus-per-task": requested["cpus_per_task"],
        "mem": requested["mem_mb"],
        "time": requested["runtime"],
        "gres": requested.get("gres"),
        "partition": requested.get("slurm_partition"),
        "account": requested.get("slurm_account"),
        "output": RUN / "bench.log",
    }
    header = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    lines = commands.lines(run, program, image.path, Scope.RANKS)
    batch.write_text("\n".join(["#!/bin/bash", *header, lines, ""]), encoding="utf-8")
    compare(
        {
            "first step, snakemake": lambda: first_step(*snakemake(name, f"{RUN}.done", force=True)),
            "first step, sbatch": lambda: first_step("sbatch", "--wait", str(batch)),
        },
        repeats,
    )
    batch.unlink()


def first_step(*command: str) -> float:
    """Return the seconds from a call to the first line in metrics.jsonl of its run; also waits for the run's end."""
    metrics = RUN / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.02)
        first = time.perf_counter() - begin
    if process.returncode:
        raise UserError(f"{' '.join(command)} failed; run it by hand to see why.")
    return first


def compare(measured: dict[str, Callable[[], float]], repeats: int) -> None:
    """Take the measurements alternately, so that a slow minute affects all of them; print the median of each."""
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(repeats):
        for name, measure in measured.items():
            times[name].append(measure())
    for name, values in times.items():
        spread = f"median of {repeats}, {min(values):.1f} to {max(values):.1f}"
        print(f"{name:<22} {statistics.median(values):7.1f} s  ({spread})", flush=True)


def seconds(*command: str) -> float:
    """Return the wall time of a command that must succeed."""
    begin = time.perf_counter()
    quietly(*command)
    return time.perf_counter() - begin


def snakemake(site: str, *targets: str, force: bool = False) -> list[str]:
    """Return the command line of a snakemake call at the site."""
    flags = ["--force"] if force else []
    return [
        str(Path(sys.executable).with_name("snakemake")),
        "--profile",
        "slurm",
        *flags,
        "--config",
        f"site={site}",
        "--",
        *targets,
    ]


def quietly(*command: str) -> None:
    """Run a command; show its output only if it fails.

    Raises:
        UserError: it failed.
    """
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise UserError(f"{done.stdout[-3000:]}\n{' '.join(command)} failed; its last output is above.")


if __name__ == "__main__":
    run_program(main)
