"""Calls of Snakemake in forks of one process that has imported it.

Run as a program in a copy of the project: its argument is a JSON list of the calls' arguments, its last output line a
JSON list of how each call failed (null: it did not) and what it wrote.
"""

import json
import sys
from multiprocessing import get_context

from snakemake import cli
from typed import captured


def _called(words):
    sys.argv = ["snakemake", *words]
    return captured(cli.main, words)


if __name__ == "__main__":
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        print(json.dumps(pool.map(_called, json.loads(sys.argv[1]), chunksize=1)))
