"""Download a workload's data set or model from the hub, on a node with a network; interrupted downloads resume."""

from pathlib import Path

from shardlab.cli import program
from shardlab.data import hub_download
from shardlab.errors import UserError
from shardlab.settings.types import DataSet, Model


@program
def main(output: Path, data: DataSet | None = None, model: Model | None = None) -> None:
    """Download and write the manifest."""
    if model:
        manifest = hub_download.download_model(model, output)
    elif data:
        manifest = hub_download.download(data, output)
    else:
        raise UserError("give --data or --model.")
    revision = manifest["hub"]["revision"]
    if revision != manifest["commit"]:
        print(f"revision {revision} is a branch, which can move; pin it: revision: {manifest['commit']}")
    print(f"commit {manifest['commit']}")
