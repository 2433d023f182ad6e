#!/usr/bin/env python3
"""Start a stage's program as the site requires: in a Slurm job, in the image, on
all ranks of a run or in one process.

Options that launch.py does not know are passed to the program.
"""

from shardlab.launch import forkserver


def main() -> int:
    """Run the job in the fork server, or here."""
    forkserver.delegate()
    from shardlab.launch import job  # importing it takes longer than many jobs

    return job.main(__doc__)


if __name__ == "__main__":
    from shardlab.errors import run_program

    run_program(main)
