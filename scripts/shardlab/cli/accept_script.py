"""Check what a script left, and write train.json; `shardlab launch` starts it once all ranks of the script have ended.

Its options are those of train_script, as the same job starts both.
"""

from pathlib import Path

from shardlab.cli import program
from shardlab.data import store
from shardlab.runs.images import origin_of
from shardlab.settings.types import read_run


@program
def main(
    settings: Path,
    data: Path,
    weights: Path,
    output: Path,
    attempt: int = 1,
    commit: str | None = None,
    image: Path | None = None,
    restart: bool = False,
    tensorboard: bool = False,
) -> None:
    """Check and write."""
    from shardlab.runtime import distributed  # imports take seconds
    from shardlab.train import script_report

    run = read_run(settings)
    distributed.start(run.site)
    origin = origin_of(commit, image)
    fingerprint = store.fingerprint_of(data)
    script_report.accept(run, data, weights, output, fingerprint, origin)
