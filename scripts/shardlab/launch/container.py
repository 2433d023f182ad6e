"""How a command runs inside the image: the site's words, filled in."""

import os
import shutil
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.settings.sites import ContainerExec

PROJECT = Path.cwd()
"""Where the call's relative paths begin: the repository, or the folder of who uses it as a module."""


def words(container: ContainerExec, image: Path) -> list[str]:
    """The words before a command inside the image: ``container.words``, with what stands in braces filled in."""
    folders = dict.fromkeys([str(PROJECT), str(ROOT)])
    binds = ",".join([*folders, *container.binds])
    values = {"command": container.command, "project": str(PROJECT), "binds": binds, "image": str(image)}
    filled = []
    for word in container.words:
        filled += container.flags if word == "{flags}" else [word.format_map(values)]
    return filled


def missing(command: str) -> str | None:
    """What to do where the program that builds and starts images is not on the PATH; None where it is."""
    if shutil.which(command):
        return None
    return (
        f"there is no {command} on {os.uname().nodename}, which builds and starts the image; load its module before "
        "snakemake, set container.command in the site's file to its path, or set config key container to off"
    )


def require(command: str) -> None:
    """Raise a UserError where the program that builds and starts images is not on the PATH."""
    if reason := missing(command):
        raise UserError(f"{reason}.")
