"""Prepare a data set: encode the samples of every split as arrays, with a fingerprint. Needs no network."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from shardlab import data as data_sets
from shardlab.cli import program
from shardlab.data import Samples, hub_download, store
from shardlab.data.encoders import encode
from shardlab.errors import UserError
from shardlab.settings import code_fingerprint
from shardlab.settings.types import DataSet, Model

SECONDS = 10.0
"""Before the first bar of a split, and between two."""


class Shown:
    """Samples of a split that show how many were read, if that takes long."""

    def __init__(self, split: str, samples: Samples) -> None:
        self.split, self.samples = split, samples

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Read from the first sample."""
        return iter(tqdm(self.samples, self.split, unit=" samples", mininterval=SECONDS, delay=SECONDS))


@program
def main(data: DataSet, raw: Path, output: Path) -> None:
    """Read, encode, write."""
    started = time.perf_counter()
    splits = data_sets.read(data, raw)
    encoded = encode(data, {split: Shown(split, samples) for split, samples in splits.items()})
    code_fingerprint.check_unchanged(data.sources)
    manifest = store.write(output, data, *encoded)
    for split, counts in manifest["counts"].items():
        for what, count in counts.items():
            print(f"{split}: {count} {what}")
    total = sum(manifest["samples"].values())
    size = sum((output / name).stat().st_size for name in manifest["files"])
    seconds = time.perf_counter() - started
    print(f"{seconds:.1f} s, {1000 * seconds / total:.2f} s per 1000 samples; {size / total:.0f} bytes per sample")
    print(f"samples {manifest['samples']}\nfingerprint {manifest['fingerprint']}")


@program
def download(output: Path, data: DataSet | None = None, model: Model | None = None) -> None:
    """Download a workload's data set or model from the hub, on a node with a network; interrupted downloads resume."""
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
