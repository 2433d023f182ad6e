#!/usr/bin/env python3
"""Start the ranks of a program on this node: torchrun, whose ranks are forks of this process.

PyTorch is thus read and imported once for a node, and not once for each of its ranks and once more for torchrun.
"""

import argparse
from importlib import import_module

from shardlab.errors import run_program


def main() -> None:
    """Import, then be torchrun."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="ranks.py [--imports A,B] [torchrun's words] PROGRAM [its words]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--imports",
        default="",
        help="modules to import before; none that may ask for a GPU, as CUDA does not survive a fork",
    )
    args, words = parser.parse_known_args()
    from torch.distributed import run as torchrun

    for name in filter(None, args.imports.split(",")):
        import_module(name)
    torchrun.main(["--run-path", "--start-method=fork", *words])


if __name__ == "__main__":
    run_program(main)
