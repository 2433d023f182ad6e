"""Checks of a call of Snakemake before it reads or makes anything: its folder, configuration file and targets."""

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from shardlab.errors import UserError
from shardlab.settings import load
from shardlab.settings.types import RESERVED

OF_A_RUN = ("run.json", "test.json")
"""Files in a run's folder that rules make; `.done` next to the folder is the only other one."""
WRITTEN = ("results", ".snakemake", *(f".snakemake/{name}" for name in ("incomplete", "locks", "log", "metadata")))
"""Folders that every call writes into, or makes."""
FILE_OPTIONS = ("--report", "--cleanup-metadata", "--archive")
"""Snakemake options whose value is a file, not a target."""


def profile(arguments: list[str]) -> str | None:
    """Return the profile that a call of Snakemake names; None without one."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--profile=") else [word])]
    named = words[words.index("--profile") + 1 :][:1] if "--profile" in words else []
    return named[0] if named and named[0] != "none" else None


def submits_to_slurm(arguments: list[str]) -> bool:
    """Return whether a call, or the one of which it is the dry run, submits jobs to Slurm, by its profile or option."""
    options = re.search(r" (?:-e|--executor)[ =](\S+)", " ".join(["", *arguments]))
    file = Path(profile(arguments) or "", "config.yaml")
    written = load.read_yaml(file) if profile(arguments) and file.exists() else {}
    return (options[1] if options else written.get("executor")) == "slurm"


class Target(NamedTuple):
    """A run that a call names."""

    strategy: str
    workload: str
    exported: bool
    """True if its weights are to be exported."""


def check_folder(folder: Path) -> None:
    """Check that a call can write its results and Snakemake's records into ``folder``.

    Raises:
        UserError: it cannot; names the path.
    """
    for name in ("data", "results", ".snakemake"):
        path = folder / name
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{name} is a link to {path.readlink()}, which does not exist; make that folder, or remove the link."
            )
    for name in WRITTEN:
        path = folder / name
        while not path.exists():
            path = path.parent
        if not os.access(path, os.W_OK | os.X_OK):
            raise UserError(
                f"you cannot write into {path}; work in your own copy of the project, or have its owner make it "
                "writable for you."
            )


def check_configuration(files: list[Path]) -> None:
    """Read configuration files strictly before Snakemake does, which takes the last of duplicate keys.

    Raises:
        UserError: one is not keys and values in UTF-8, is empty, or has a duplicate key.
    """
    for path in files:
        # Snakemake reads JSON by its own rules.
        if path.suffix != ".json" and path.exists() and not load.read_yaml(path):
            raise UserError(f"{path} is empty; write key: value, such as site: local.")


def targets(arguments: list[str]) -> Iterator[Target]:
    """Yield the runs named by a call's arguments; Snakemake knows its targets only after reading the Snakefile.

    Raises:
        UserError: a target is among the runs and no rule makes it; names what would work.
    """
    for option, target in zip(["", *arguments], arguments, strict=False):
        match = re.fullmatch(r"results/([^/]+)/([^/]+)(?:/(.*))?", target)
        if option in FILE_OPTIONS or not match:
            continue
        if match[1] == "export" and (run := re.fullmatch(r"([^/]+)/?", match[3] or "")):
            yield Target(match[2], run[1], exported=True)
        elif match[1] == "diagnosis" and (page := re.fullmatch(r"([^/]+)\.md", match[3] or "")):
            yield Target(match[2], page[1], exported=False)
        elif match[1] not in RESERVED:
            yield Target(match[1], _workload(*match.groups()), exported=False)


def _workload(strategy: str, name: str, file: str | None) -> str:
    """Return the workload of ``results/<strategy>/<name>/<file>``."""
    if file in OF_A_RUN:
        return name
    if file is None and name.endswith(".done"):
        return name.removesuffix(".done")
    folder = f"results/{strategy}/{re.sub(r'[.][A-Za-z]+$', '', name)}"
    close = get_close_matches(file or "", OF_A_RUN, n=1, cutoff=0.8)
    meant = f"{folder}/{close[0]}" if close else f"{folder}.done"
    given = f"results/{strategy}/{name}" if file is None else f"results/{strategy}/{name}/{file}"
    raise UserError(f"no rule makes {given}; did you mean {meant}?")
