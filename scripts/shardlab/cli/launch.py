"""Start a stage as the site requires: in a Slurm job, in the image, on all ranks
of a run or in one process.

Options that it does not know are those of the stage.
"""

import argparse
import inspect
import os
import shutil
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

from shardlab.cli import program, run_verb
from shardlab.runs import forkserver as server
from shardlab.runs import signals


def main() -> int:
    """Run the job in the fork server, or here."""
    server.delegate(["launch", *sys.argv[1:]])
    from shardlab.runs import job  # importing it takes longer than many jobs

    return job.main(__doc__)


@program
def forkserver(
    folder: Path,
    parent: int,
    /,
    *environment: str,
) -> None:
    """Import PyTorch and what a training needs once, and fork the jobs of a call of Snakemake from this process.

    Snakemake's process starts it, with the listening socket as standard input; see shardlab/runs/forkserver.py.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signals.die_with_parent(signal.SIGTERM, parent)
    signals.name("fork server")
    listener = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    own = os.getpid()
    try:
        server.serve(listener, prepare, {name: os.environ[name] for name in environment}, run_verb)
    finally:
        if os.getpid() == own:
            shutil.rmtree(folder, ignore_errors=True)


def prepare() -> None:
    """Import what most jobs need; a failed import is the error of the job that needs it."""
    from shardlab.settings import code_fingerprint

    for name in server.IMPORTS:
        try:
            import_module(name)
        except Exception as error:
            print(f"note: {name} was not imported: {type(error).__name__}: {error}", flush=True)
    code_fingerprint.digest_all()


def fork_torchrun() -> None:
    """Start the ranks of a program on this node: torchrun, whose ranks can be forks
    of this process.

    PyTorch is then imported once per node, instead of once per rank and once more
    for torchrun.
    """
    parser = argparse.ArgumentParser(
        description=inspect.getdoc(fork_torchrun),
        usage="shardlab fork_torchrun [--imports A,B] [torchrun's] PROGRAM [its own]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--imports",
        default="",
        help="modules to import before the ranks are forked (without: ranks are new processes, as on a GPU)",
    )
    parser.add_argument(
        "--standalone", action="store_true", help="the ranks of one node: nothing can be reached from other machines"
    )
    parser.add_argument(
        "--listen", action="store_true", help="with it, for programs that meet at MASTER_ADDR: a store on loopback"
    )
    args, words = parser.parse_known_args()
    from torch.distributed import run as torchrun

    for name in filter(None, args.imports.split(",")):
        import_module(name)
    if "--shutdown-timeout" not in torchrun.get_args_parser().format_help():  # PyTorch before 2.13: always 30 s
        words = [word for word in words if not word.startswith("--shutdown-timeout=")]
    os.environ[signals.TORCHRUN] = str(os.getpid())
    # Otherwise torchrun leaves a folder for logs in TMPDIR.
    words = [f"--log-dir={os.devnull}", *words]
    if args.imports:
        words = ["--run-path", "--start-method=fork", *words]
    if args.standalone:
        from shardlab.runtime import one_node

        with one_node.rendezvous(listens=args.listen) as meeting:
            torchrun.main([*meeting, *words])
        return
    # Else the first ranks connect to a thread of this process while the others are forked. It looks up their names,
    # and a rank forked at that moment inherits glibc's resolver lock and waits on it forever.
    if args.imports:
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    torchrun.main(words)
