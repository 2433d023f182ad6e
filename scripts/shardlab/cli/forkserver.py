"""Import PyTorch and what a training needs once, and fork the jobs of a call of
Snakemake from this process.

Snakemake's process starts it, with the listening socket as standard input; see
shardlab/runs/forkserver.py.
"""

import os
import shutil
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

from shardlab.cli import program, run_verb
from shardlab.runs import forkserver, signals
from shardlab.settings import code_fingerprint


@program
def main(
    folder: Annotated[Path, "folder of the socket, removed at the end"],
    parent: Annotated[int, "process id of the parent, with which it ends"],
    /,
    *environment: Annotated[str, "variables that the modules are imported with"],
) -> None:
    """Serve until Snakemake ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signals.die_with_parent(signal.SIGTERM, parent)
    signals.name("fork server")
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    server = os.getpid()
    try:
        forkserver.serve(listener, prepare, {name: os.environ[name] for name in environment}, run_verb)
    finally:
        if os.getpid() == server:
            shutil.rmtree(folder, ignore_errors=True)


def prepare() -> None:
    """Import what most jobs need; a failed import is the error of the job that needs it."""
    for name in forkserver.IMPORTS:
        try:
            import_module(name)
        except Exception as error:
            print(f"note: {name} was not imported: {type(error).__name__}: {error}", flush=True)
    code_fingerprint.digest_all()
