#!/usr/bin/env python3
"""Kill trainings at random (seeded), and check that each one ends bitwise equal
to an undisturbed one.

Example: python benchmarks/soak.py --kills 1000 --seed 1
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tests", "scripts")]

from helpers.kills import soak  # type: ignore[import-not-found]  # noqa: E402


def main() -> None:
    """Kill, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="processes to kill (1000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the choice of victims, times and signals (1)")
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = soak(Path(folder), args.kills, args.seed, lambda line: print(line, flush=True))
    print("\n| killed | signal | times |\n| --- | --- | --- |")
    for (role, number), times in sorted(Counter((kill.role, kill.signal) for kill in done).items()):
        print(f"| {role} | {number} | {times} |")
    print(f"\n{len(done)} kills (seed {args.seed}) in {time.monotonic() - started:.0f} s; every run ended bit-equal.")


if __name__ == "__main__":
    main()
