#!/usr/bin/env python3
"""Download a workload's data set from the hub, on a node with a network; a cut download goes on."""

import argparse
from pathlib import Path

from shardlab.data import hub
from shardlab.errors import run_program
from shardlab.settings import DataSet


def main() -> None:
    """Download and write the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=DataSet.model_validate_json, required=True, help="settings of the data set (JSON)"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the files and download.json")
    args = parser.parse_args()
    manifest = hub.download(args.data, args.output)
    print(f"commit {manifest['commit']}\nfingerprint {manifest['fingerprint']}")


if __name__ == "__main__":
    run_program(main)
