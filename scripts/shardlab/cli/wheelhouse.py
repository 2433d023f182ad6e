"""Collect the pinned wheels of the image, on the login node, with the pip settings of this machine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import write_json
from shardlab.settings.sites import Container

IN_ROCM_IMAGE = ("torch", "triton")
"""Packages that an image with PyTorch for ROCm provides itself."""
OF_NVIDIA = ("nvidia-", "cuda-")
"""Prefixes of packages that are only used on NVIDIA GPUs."""


@program
def main(
    lock: Path,
    output: Annotated[Path, "list to write; the wheels go into its folder"],
    base: Annotated[str, "the site's container.base"] = Container().base,
) -> None:
    """Collect the wheels, then list them."""
    folder = output.parent
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    lines = lock.read_text(encoding="utf-8").splitlines()
    if subprocess.run(command(base, lock, lines, new)).returncode:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(f"pip could not collect the packages of {lock}; see the error above.")
    write_json(new / output.name, sorted(path.name for path in new.glob("*.whl")))
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def command(base: str, lock: Path, lines: list[str], folder: Path) -> list[str]:
    """Build pip's command that puts the wheels of a lock file, given by its ``lines``, into ``folder``."""
    # `wheel`, not `download`: source packages are built here, so that the image needs no index for them either.
    collect = [sys.executable, "-m", "pip", "wheel", "--quiet", "--use-pep517", "--wheel-dir", str(folder)]
    if base != "rocm":
        return [*collect, "-r", str(lock)]
    # The lock file has every package, and dependencies would bring PyTorch for CUDA back.
    return [*collect, "--no-deps", *for_rocm(lines)]


def for_rocm(lines: list[str]) -> list[str]:
    """Return the pins of a lock file that are installed on top of an image with PyTorch for ROCm."""
    pins = [line.split("#")[0].strip() for line in lines if re.match("[A-Za-z0-9]", line)]
    names = [re.split("[^A-Za-z0-9._-]", pin)[0].lower() for pin in pins]
    return [
        pin
        for name, pin in zip(names, pins, strict=True)
        if name not in IN_ROCM_IMAGE and not name.startswith(OF_NVIDIA)
    ]
