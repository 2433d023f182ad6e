#!/usr/bin/env python3
"""Collect the pinned wheels of the image, on the login node, with the pip settings of this machine."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from shardlab.errors import UserError, run_program
from shardlab.files import sha256, write_json


def main() -> None:
    """Collect, then list what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, required=True, help="pinned requirements")
    parser.add_argument("--output", type=Path, required=True, help="list to write; the wheels lie in its folder")
    args = parser.parse_args()
    folder = args.output.parent
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    # `wheel`, not `download`: what comes as source is built here, so that the image needs no index for that either.
    collect = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--use-pep517",
        "-r",
        str(args.lock),
        "--wheel-dir",
        str(new),
    ]
    if subprocess.run(collect).returncode:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(f"pip could not collect the packages of {args.lock}; see the error above.")
    write_json(new / args.output.name, {path.name: sha256(path) for path in sorted(new.glob("*.whl"))})
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


if __name__ == "__main__":
    run_program(main)
