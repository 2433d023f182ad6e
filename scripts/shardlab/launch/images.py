"""The container image: what is in it, and where it lies."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from shardlab.errors import UserError
from shardlab.files import read_json
from shardlab.schema import Strict, check


class ImageReport(Strict):
    """containers/train.image.json: the image that runs take place in."""

    schema_version: Literal[1] = Field(1, description="Version of this format.")
    path: Path = Field(description="The image.")
    sha256: str = Field(description="SHA-256 of the file.")
    bytes: int = Field(description="Its size.")
    labels: dict[str, str] = Field(description="Labels of the image: versions, git commit, hash of the lock file.")
    base: str | None = Field(None, description="What it was built from; null for an image that was there.")
    compression: str | None = Field(None, description="Compression of its file system; null where not built here.")
    build_seconds: float | None = Field(None, description="Time of apptainer build; null where not built here.")


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
    if not image.path.is_file():
        raise UserError(
            f"the image {image.path} is missing; build it again with: snakemake --profile slurm -f {report}, "
            "or correct container.image in the site's file."
        )
    return image
