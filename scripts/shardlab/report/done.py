"""STRATEGY/WORKLOAD.done: which files a finished run ended with."""

from pathlib import Path

from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import sha256
from shardlab.report.metrics import now
from shardlab.report.records import Report


class Done(Report):
    """The file that Snakemake waits for, written last."""

    ended: str = Field(description="When, in UTC.")
    report: str = Field(description="SHA-256 of train.json.")
    weights_bytes: int = Field(description="Size of model.safetensors; train.json has its SHA-256.")


def note(path: Path, folder: Path) -> None:
    """Note that the run in a folder is done."""
    size = (folder / "model.safetensors").stat().st_size
    Done(ended=now(), report=sha256(folder / "train.json"), weights_bytes=size).write(path)


def changed(folder: Path) -> str | None:
    """Say which file of a run that is done is not the one that it ended with; None if none is seen to be.

    The weights are known by their size: their SHA-256 is compared where they are used.
    """
    try:
        done = Done.read(folder.with_name(f"{folder.name}.done"), "")
    except UserError:
        return None  # not done, or by an earlier version
    report, weights = folder / "train.json", folder / "model.safetensors"
    try:
        if sha256(report) != done.report:
            return f"{report} is not what this run's training wrote"
        if (size := weights.stat().st_size) != done.weights_bytes:
            return f"{weights} has {size} bytes, and the training wrote {done.weights_bytes}"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    return None
