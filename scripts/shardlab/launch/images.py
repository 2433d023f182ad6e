"""The container image: what is in it, and where it lies."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import read_json, sha256
from shardlab.schema import Strict, check


class ImageReport(Strict):
    """containers/train.image.json: the image that runs take place in."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    path: Path = Field(description="The image: a file, or a name that the site's command knows.")
    sha256: str | None = Field(description="SHA-256 of the file; null for a name.")
    bytes: int | None = Field(description="Its size; null for a name.")
    labels: dict[str, str] = Field(description="Labels of the image: versions, git commit, hash of the lock file.")
    base: str | None = Field(None, description="What it was built from; null for an image that was there.")
    compression: str | None = Field(None, description="Compression of its file system; null where not built here.")
    build_seconds: float | None = Field(None, description="Time of apptainer build; null where not built here.")
    torch: str | None = Field(None, description="Its PyTorch; null for an image whose labels do not say it.")
    cuda: str | None = Field(None, description="CUDA that this PyTorch is built for; null for CPUs or ROCm.")
    rocm: str | None = Field(None, description="ROCm that this PyTorch is built for; null for CPUs or CUDA.")
    driver: int | None = Field(
        None, description="Oldest branch of NVIDIA's driver that runs this CUDA, such as 580; null without CUDA."
    )


def read_report(path: Path) -> ImageReport:
    """An image's report; from inside the image too, where the image itself need not be in sight.

    Raises:
        UserError: there is no report, or it is damaged.
    """
    values = read_json(path, "report of the image", f"make it with: snakemake --profile slurm {path}")
    return check(ImageReport, values, str(path))


def read_image(report: Path) -> ImageReport:
    """An image's report, where the image is needed.

    Raises:
        UserError: there is no report, or the image that it names has gone.
    """
    image = read_report(report)
    if image.sha256 is not None and not image.path.is_file():
        raise UserError(
            f"the image {image.path} is missing; build it again with: snakemake --profile slurm -f {report}, "
            "or correct container.image in the site's file."
        )
    # All of it is read again only where it is not as old and as large as what the report is about.
    if image.sha256 is not None:
        now = image.path.stat()
        as_reported = now.st_size == image.bytes and now.st_mtime <= report.stat().st_mtime
        if not as_reported and sha256(image.path) != image.sha256:
            raise UserError(
                f"the image {image.path} is not the one that {report} is about (its SHA-256 differs); build it again "
                f"with: snakemake --profile slurm -f {report}."
            )
    return image
