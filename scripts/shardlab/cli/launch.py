"""Start a stage as the site requires: in a Slurm job, in the image, on all ranks
of a run or in one process.

Options that it does not know are those of the stage.
"""

import sys

from shardlab.runs import forkserver


def main() -> int:
    """Run the job in the fork server, or here."""
    forkserver.delegate(["launch", *sys.argv[1:]])
    from shardlab.runs import job  # importing it takes longer than many jobs

    return job.main(__doc__)
