#!/usr/bin/env python3
"""Prepare a data set: encode the samples of every split as arrays, with a fingerprint. Needs no network."""

import argparse
import time
from pathlib import Path

from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.errors import run_program
from shardlab.settings import code_fingerprint
from shardlab.settings.types import DataSet


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
    encoded = encode(args.data, data_sets.read(args.data, args.raw))
    code_fingerprint.check_imported(args.data.sources)
    manifest = store.write(args.output, args.data, *encoded)
    for split, counts in manifest["counts"].items():
        for what, count in counts.items():
            print(f"{split}: {count} {what}")
    total, size = (
        sum(manifest["samples"].values()),
        sum((args.output / name).stat().st_size for name in manifest["files"]),
    )
    seconds = time.perf_counter() - started
    print(f"{seconds:.1f} s, {1000 * seconds / total:.2f} s per 1000 samples; {size / total:.0f} bytes per sample")
    print(f"samples {manifest['samples']}\nfingerprint {manifest['fingerprint']}")


if __name__ == "__main__":
    run_program(main)
