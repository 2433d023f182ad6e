"""Prepare a data set: encode the samples of every split as arrays, with a fingerprint. Needs no network."""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.data.samples import Samples
from shardlab.settings import code_fingerprint
from shardlab.settings.types import DataSet

SECONDS = 10.0
"""Between two lines of progress in a log."""


class Shown:
    """Samples of a split that show how many were read: a bar in a terminal, in a log one line every some seconds."""

    def __init__(self, split: str, samples: Samples) -> None:
        self.split, self.samples = split, samples

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Read from the first sample."""
        bar = tqdm(self.samples, desc=self.split, unit=" samples", disable=None, leave=False)
        last = time.monotonic()
        for number, sample in enumerate(bar):
            if bar.disable and time.monotonic() - last > SECONDS:
                last = time.monotonic()
                of = f" of {bar.total}" if bar.total else ""
                print(f"{self.split}: {number}{of} samples read", file=sys.stderr, flush=True)
            yield sample


def main() -> None:
    """Read, encode, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=DataSet.model_validate_json, required=True, help="settings of the data set (JSON)"
    )
    parser.add_argument("--raw", type=Path, required=True, help="folder of the downloaded files, for hub data")
    parser.add_argument("--output", type=Path, required=True, help="folder for the prepared files")
    args = parser.parse_args()
    started = time.perf_counter()
    splits = data_sets.read(args.data, args.raw)
    encoded = encode(args.data, {split: Shown(split, samples) for split, samples in splits.items()})
    code_fingerprint.check_unchanged(args.data.sources)
    manifest = store.write(args.output, args.data, *encoded)
    for split, counts in manifest["counts"].items():
        for what, count in counts.items():
            print(f"{split}: {count} {what}")
    total = sum(manifest["samples"].values())
    size = sum((args.output / name).stat().st_size for name in manifest["files"])
    seconds = time.perf_counter() - started
    print(f"{seconds:.1f} s, {1000 * seconds / total:.2f} s per 1000 samples; {size / total:.0f} bytes per sample")
    print(f"samples {manifest['samples']}\nfingerprint {manifest['fingerprint']}")
