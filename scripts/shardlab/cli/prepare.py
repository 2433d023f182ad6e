"""Prepare a data set: encode the samples of every split as arrays, with a fingerprint. Needs no network."""

import argparse
from pathlib import Path

from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
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
    encoded = encode(args.data, data_sets.read(args.data, args.raw))
    code_fingerprint.check_imported(args.data.sources)
    manifest = store.write(args.output, args.data, *encoded)
    for split, counts in manifest["counts"].items():
        for what, count in counts.items():
            print(f"{split}: {count} {what}")
    print(f"samples {manifest['samples']}\nfingerprint {manifest['fingerprint']}")
