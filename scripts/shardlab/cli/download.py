"""Download a workload's data set or model from the hub, on a node with a network; interrupted downloads resume."""

import argparse
from pathlib import Path

from shardlab.data import hub_download
from shardlab.settings.types import DataSet, Model


def main() -> None:
    """Download and write the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=DataSet.model_validate_json, help="settings of the data set (JSON)")
    what.add_argument("--model", type=Model.model_validate_json, help="settings of the model (JSON)")
    parser.add_argument("--output", type=Path, required=True, help="folder for the files and download.json")
    args = parser.parse_args()
    manifest = (
        hub_download.download(args.data, args.output)
        if args.data
        else hub_download.download_model(args.model, args.output)
    )
    revision = manifest["hub"]["revision"]
    if revision != manifest["commit"]:
        print(f"revision {revision} is a branch, which can move; pin it: revision: {manifest['commit']}")
    print(f"commit {manifest['commit']}\nfingerprint {manifest['fingerprint']}")
