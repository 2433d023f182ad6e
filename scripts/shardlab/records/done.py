"""STRATEGY/WORKLOAD.done: which files a finished run ended with."""

from pathlib import Path

from pydantic import Field

from shardlab.errors import UserError, remedy
from shardlab.files import sha256
from shardlab.records.metrics import now
from shardlab.records.reports import InitialReport, Report, TrainReport

AVERAGED = "ema.safetensors"
"""The averages of recipe.ema_decay, next to model.safetensors."""


class Done(Report):
    """The file that Snakemake waits for, written last."""

    ended: str = Field(description="Time of the end, in UTC.")
    report: str = Field(description="SHA-256 of train.json.")
    weights_bytes: int = Field(description="Size of model.safetensors; train.json has its SHA-256.")
    ema_bytes: int | None = Field(None, description="Size of ema.safetensors; null without recipe.ema_decay.")


def note(path: Path, folder: Path) -> None:
    size, average = (folder / "model.safetensors").stat().st_size, folder / AVERAGED
    ema = average.stat().st_size if average.exists() else None
    Done(ended=now(), report=sha256(folder / "train.json"), weights_bytes=size, ema_bytes=ema).write(path)


def changed(folder: Path) -> str | None:
    """Return which file of a finished run has changed since; None if no change is detected.

    Only the size of the weights is checked: their SHA-256 is compared where they are used.
    """
    try:
        done = Done.read(folder.with_name(f"{folder.name}.done"), "")
    except UserError:
        return None  # not done, or written by an earlier version
    report = folder / "train.json"
    sizes = {folder / "model.safetensors": done.weights_bytes, folder / AVERAGED: done.ema_bytes}
    try:
        if sha256(report) != done.report:
            return f"{report} has changed since this run's training wrote it"
        for weights, written in sizes.items():
            if written is not None and (size := weights.stat().st_size) != written:
                return f"{weights} has {size} bytes, but the training wrote {written}"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    return None


def weights_digest(weights: Path, initial: InitialReport | None = None) -> str:
    """Return the SHA-256 of trained weights, after comparing it with the report next to them.

    Raises:
        UserError: they differ, or were trained from other initial weights than those of the report ``initial``.
    """
    digest = sha256(weights)
    report = weights.with_name("train.json")
    again = remedy("train again", f"{weights.parent}.done", "-f")
    if report.exists():
        train = TrainReport.read(report, again)
        if digest != (train.ema_weights if weights.name == AVERAGED else train.weights):
            raise UserError(f"{weights} has changed since the training wrote it (SHA-256 mismatch); {again}.")
        if initial and initial.weights != train.initial_weights:
            raise UserError(f"{weights} was trained from other initial weights than those there are now; {again}.")
    return digest
