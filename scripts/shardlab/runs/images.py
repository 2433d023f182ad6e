"""The container image: its report, and its location."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shardlab.errors import UserError, remedy
from shardlab.files import read_json, sha256
from shardlab.runs import slurm
from shardlab.schema import Strict, check


class ImageReport(Strict):
    """The image that runs use: containers/train.image.json."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    path: str = Field(description="The image: a file, or a name known to the site's command.")
    sha256: str | None = Field(description="SHA-256 of the file; null for a name.")
    bytes: int | None = Field(description="Size in bytes; null for a name.")
    labels: dict[str, str] = Field(description="Labels of the image: versions, git commit, hash of the lock file.")
    architecture: str | None = Field(
        None, description="Machine that the image runs on, such as x86_64 or aarch64; null if it does not say."
    )
    base: str | None = Field(None, description="Base that it was built from; null for an existing image.")
    compression: str | None = Field(None, description="Compression of its file system; null if not built here.")
    build_seconds: float | None = Field(None, description="Duration of apptainer build; null if not built here.")
    torch: str | None = Field(None, description="PyTorch version; null for an image whose labels do not name it.")
    cuda: str | None = Field(None, description="CUDA version that this PyTorch is built for; null for CPUs or ROCm.")
    rocm: str | None = Field(None, description="ROCm version that this PyTorch is built for; null for CPUs or CUDA.")
    driver: int | None = Field(
        None, description="Oldest branch of NVIDIA's driver that runs this CUDA, such as 580; null without CUDA."
    )


def read_report(path: Path) -> ImageReport:
    """Return an image's report; also from inside the image, where the image itself may not be visible.

    Raises:
        UserError: the report is missing or damaged.
    """
    values = read_json(path, "report of the image", remedy("make it", path))
    return check(ImageReport, values, str(path))


def origin_of(commit: str | None, image: Path | None) -> dict[str, Any]:
    """Return a training's origin for train.json: commit, Slurm job and, given the report of one, image."""
    origin: dict[str, Any] = {"git_commit": commit, "slurm_job_id": slurm.job_id()}
    if image:
        report = read_report(image)
        origin |= {"image_digest": report.sha256, "image_labels": report.labels}
    return origin


def read_image(report: Path) -> ImageReport:
    """Return an image's report after checking that the image exists.

    Raises:
        UserError: the report is missing, or the image that it names.
    """
    image = read_report(report)
    file = Path(image.path)
    if image.sha256 is None:
        return image
    wrong = "is missing"
    if file.is_file():
        # Only hash the image again if its time or size differs from the report's.
        now = file.stat()
        as_reported = now.st_size == image.bytes and now.st_mtime <= report.stat().st_mtime
        if as_reported or sha256(file) == image.sha256:
            return image
        wrong = f"is not the one in {report} (its SHA-256 differs)"
    again = remedy("build it again", report, "-f")
    raise UserError(f"the image {file} {wrong}; {again}, or correct container.image in the site's file.")
