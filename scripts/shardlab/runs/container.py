"""How a command runs inside the image: by a command before it, or by options of srun; the site's words, filled in."""

import os
import shutil
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.settings.sites import ContainerExec

PROJECT = Path.cwd()
"""Base of a call's relative paths: the repository, or the folder of a workflow that uses it as a module."""


def exec_words(container: ContainerExec, image: str) -> list[str]:
    """Return the words that precede a command inside the image: none where srun starts it there."""
    return [] if container.srun_options else _filled(container.exec_template, container, image)


def srun_words(container: ContainerExec, image: str) -> list[str]:
    """Return the options that make srun start a command inside the image; empty at most sites."""
    return _filled(container.srun_options, container, image)


def _filled(words: list[str], container: ContainerExec, image: str) -> list[str]:
    binds = [*dict.fromkeys([str(PROJECT), str(ROOT)]), *container.binds]
    mounts = [bind if ":" in bind else f"{bind}:{bind}" for bind in binds]
    values = {"command": container.command, "project": str(PROJECT), "image": image}
    values |= {"binds": ",".join(binds), "mounts": ",".join(mounts)}
    filled = []
    for word in words:
        if word == "{flags}":
            filled += container.flags
        elif "{mount}" in word:
            filled += [word.format_map(values | {"mount": mount}) for mount in mounts]
        else:
            filled.append(word.format_map(values))
    return filled


def missing(container: ContainerExec) -> str | None:
    """Return what to do if the program that builds and starts images is not on the PATH; None if it is.

    Where srun starts images, no program is needed.
    """
    if container.srun_options or shutil.which(container.command):
        return None
    return (
        f"{container.command}, which builds and starts the image, was not found on {os.uname().nodename}; load its "
        "module before snakemake, set container.command in the site's file to its path, or set config key container to "
        "off"
    )


def require(container: ContainerExec) -> None:
    """Raise a UserError if the program that builds and starts images is not on the PATH."""
    if reason := missing(container):
        raise UserError(f"{reason}.")
