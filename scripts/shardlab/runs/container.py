"""How a command runs inside the image: the site's words, filled in."""

import os
import shutil
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.settings.sites import ContainerExec

PROJECT = Path.cwd()
"""Base of a call's relative paths: the repository, or the folder of a workflow that uses it as a module."""


def exec_words(container: ContainerExec, image: Path) -> list[str]:
    """Return the words that precede a command inside the image: the filled-in ``container.exec_template``."""
    folders = dict.fromkeys([str(PROJECT), str(ROOT)])
    binds = ",".join([*folders, *container.binds])
    values = {"command": container.command, "project": str(PROJECT), "binds": binds, "image": str(image)}
    filled = []
    for word in container.exec_template:
        filled += container.flags if word == "{flags}" else [word.format_map(values)]
    return filled


def missing(command: str) -> str | None:
    """Return what to do if the program that builds and starts images is not on the PATH; None if it is."""
    if shutil.which(command):
        return None
    return (
        f"{command}, which builds and starts the image, was not found on {os.uname().nodename}; load its module before "
        "snakemake, set container.command in the site's file to its path, or set config key container to off"
    )


def require(command: str) -> None:
    """Raise a UserError if the program that builds and starts images is not on the PATH."""
    if reason := missing(command):
        raise UserError(f"{reason}.")
