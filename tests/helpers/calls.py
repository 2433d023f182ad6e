"""Calls of Snakemake in forks of one process that has imported it.

Run as a program in a copy of the project: its argument is a JSON list of the calls' arguments, its last output line the
status and the output of each.
"""

import json
import os
import sys
import tempfile
from multiprocessing import get_context


def _called(words):
    from snakemake import cli

    with tempfile.TemporaryFile("w+") as said:
        for number in (1, 2):
            os.dup2(said.fileno(), number)
        sys.argv = ["snakemake", *words]
        status = 0
        try:
            cli.main(words)
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
        said.seek(0)
        return status, said.read()


if __name__ == "__main__":
    from snakemake import cli  # noqa: F401

    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        print(json.dumps(pool.map(_called, json.loads(sys.argv[1]), chunksize=1)))
