#!/usr/bin/env python3
"""Start the ranks of one run, wait for them, and write the .done file: the rule `train` is this line."""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from shardlab.data import store
from shardlab.errors import run_program
from shardlab.files import lock, write_text
from shardlab.settings import Run, read_run

TRAIN = Path(__file__).with_name("train.py")


def main() -> int:
    """Check what the run needs, start it, and say how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="initial weights")
    parser.add_argument("--done", type=Path, required=True, help="written last, when everything else is")
    parser.add_argument("--dry-run", action="store_true", help="print the command line and stop")
    args = parser.parse_args()

    run = read_run(args.settings)
    output = args.settings.parent
    command = [
        *starter(run),
        str(TRAIN),
        f"--settings={args.settings}",
        f"--data={args.data}",
        f"--weights={args.weights}",
        f"--output={output}",
    ]
    variables = environment(run)
    print(" ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items()), shlex.join(command), flush=True)
    if args.dry_run:
        return 0
    store.verify(args.data, run.data)
    with lock(output / ".lock", "trained"):
        args.done.unlink(missing_ok=True)
        status = subprocess.run(command, env=os.environ | variables).returncode
        if status == 0:
            write_text(args.done, time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
        else:
            print(
                f"error: {run.strategy} x {run.workload} ended with status {status}; the reason stands above.",
                file=sys.stderr,
            )
        return status


def starter(run: Run) -> list[str]:
    """The words before the rank's program: plain Python for one rank, torchrun for several."""
    if run.world_size == 1 and run.engine == "torch" and not run.mesh:
        return [sys.executable]
    # --standalone: a c10d rendezvous on a free port, so that runs at the same time do not meet.
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={run.ranks_per_node}"]


def environment(run: Run) -> dict[str, str]:
    """What the ranks' environment has on top of this process's: no network, threads, the site's own."""
    offline = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    # Snakemake sets all of these to the rule's threads, that is to the cores of all ranks together:
    # every rank would start that many threads, and two ranks on two cores run six times slower.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(run.site.cpus_per_rank))
    return offline | threads | run.site.environment


if __name__ == "__main__":
    run_program(main)
