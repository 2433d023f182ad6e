#!/usr/bin/env python3
"""Start a stage's program where the site says: in a Slurm job, in the image, on all ranks of a run or in one process.

The options that launch.py does not know are the program's own.
"""

import argparse
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from shardlab.data import store
from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, lock, write_text
from shardlab.launch import container, script, slurm
from shardlab.launch.images import read_image
from shardlab.launch.stages import STAGES, scope
from shardlab.settings.types import Run, read_run


def main() -> int:
    """Check what the stage needs, start it, and say how it ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("stage", choices=STAGES, help="which program to start")
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, help="folder of the prepared data set")
    parser.add_argument("--image", type=Path, help="report of the image, where the site runs in one")
    parser.add_argument("--done", type=Path, help="written last, when everything else is")
    parser.add_argument("--dry-run", action="store_true", help="print the shell lines and stop")
    args, others = parser.parse_known_args()

    run = read_run(args.settings)
    image = image_of(run, args.image, dry_run=args.dry_run)
    (name, *words), _ = STAGES[args.stage]
    program = [str(Path(__file__).parent / name), *words, f"--settings={args.settings}", *others]
    if args.data:
        program.append(f"--data={args.data}")
    if args.stage == "train":
        program += [f"--image={args.image}"] if args.image else []
        program += commit()
    lines = script.lines(run, program, image, scope(args.stage, run))
    print(lines, flush=True)
    if args.dry_run:
        return 0
    check_place(run, image)
    if args.done is None:
        return start(lines, f"{args.stage} of {run.workload}")
    if args.data:
        store.verify(args.data, run.data)
    with lock(args.settings.parent / ".lock", "trained", slurm.holder(), slurm.in_queue):
        args.done.unlink(missing_ok=True)
        status = start(lines, f"{run.strategy} x {run.workload}")
        if status == 0:
            write_text(args.done, time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
        return status


def start(lines: str, what: str) -> int:
    """Run the lines; returns their status, and says so if it is not 0.

    Raises:
        UserError: this process was asked to end; what it started was asked too, and has ended.
    """
    stopped = threading.Event()
    with subprocess.Popen(["bash", "-c", lines], stdin=subprocess.DEVNULL) as child:

        def stop(*_: object) -> None:
            stopped.set()
            child.terminate()

        signal.signal(signal.SIGTERM, stop)
        status = child.wait()
    if stopped.is_set():
        raise UserError(
            f"{what} was told to stop (SIGTERM): the job was cancelled, or it reached its time limit; if that, raise "
            "slurm.runtime in the site's file."
        )
    if status:
        print(f"error: {what} ended with status {status}; see the error above.", file=sys.stderr)
    return status


def image_of(run: Run, report: Path | None, *, dry_run: bool) -> Path | None:
    """The image to run in, or None for a site without one; in a dry run it need not be there yet.

    Raises:
        UserError: the site runs in an image and none is given, or the image has gone.
    """
    if run.site.container is None:
        return None
    if report is None and dry_run:
        return Path("IMAGE")
    if report is None:
        raise UserError(f"site {run.site_name} runs in an image; name its report with --image.")
    return read_image(report).path


def check_place(run: Run, image: Path | None) -> None:
    """Whether this machine can start what the site starts.

    Raises:
        UserError: srun without a Slurm job, or a program that is not on the PATH.
    """
    if run.site.srun and slurm.job_id() is None:
        raise UserError(
            f"site {run.site_name} starts ranks with srun, inside a Slurm job, and this is none; "
            "run snakemake with --profile slurm, or choose site local."
        )
    if run.site.container and image:
        container.require(run.site.container.command)


def commit() -> list[str]:
    """Option of train.py with the commit of the working tree: there need not be a git inside the image."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [f"--commit={done.stdout.strip()}"]


if __name__ == "__main__":
    run_program(main)
