#!/usr/bin/env python3
"""Install the packages of lock files with pip, and show the progress on one line.

Example: python scripts/install.py envs/workflow.txt
"""

import argparse
import re
import subprocess
import sys
from collections import deque
from pathlib import Path

AT = re.compile(r"\s*(Collecting|Downloading|Using cached|Processing|Building|Installing collected packages)\b:? ?(.*)")
KEPT = 30
"""Number of pip's lines to show if it fails."""


def main() -> int:
    """Install, or print pip's last lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="lock files")
    args = parser.parse_args()
    lines = [line for path in args.files for line in path.read_text(encoding="utf-8").splitlines()]
    count = sum(bool(re.match(r"[A-Za-z0-9]", line)) for line in lines)
    words = [word for path in args.files for word in ("-r", str(path))]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", *words]
    said: deque[str] = deque(maxlen=KEPT)
    collected = 0
    with subprocess.Popen(pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            said.append(line)
            collected += line.startswith(("Collecting ", "Processing ", "Requirement already satisfied"))
            if found := AT.match(line):
                show(found[1], found[2], min(collected, count), count)
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    if process.returncode:
        print("".join(said), end="", file=sys.stderr)
        names = ", ".join(map(str, args.files))
        print(f"error: pip could not install {names}; its last lines are above.", file=sys.stderr)
    return process.returncode


def show(doing: str, what: str, collected: int, count: int) -> None:
    """Overwrite the line on a terminal; do nothing otherwise."""
    if not sys.stdout.isatty():
        return
    if doing.startswith("Installing"):
        text = f"  {count} of {count} packages: writing them to disk"
    else:
        text = f"  {collected} of {count} packages: {doing.lower()} {what.split(' (from')[0]}"
    print(f"\r\033[K{text[:99]}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
