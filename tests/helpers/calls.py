"""Calls of Snakemake in forks of one process that has imported it.

Run as a program in a copy of the project: its argument is a JSON list of the calls' arguments, its last output line a
JSON list of how each call failed (null: it did not) and what it wrote.
"""

import sys

from snakemake import cli
from typed import captured, print_each


def _called(words):
    sys.argv = ["snakemake", *words]
    return captured(cli.main, words)


if __name__ == "__main__":
    print_each(_called)
