"""Start the ranks of a program on this node: torchrun, whose ranks can be forks
of this process.

PyTorch is then imported once per node, instead of once per rank and once more
for torchrun.
"""

import argparse
import os
from importlib import import_module

from shardlab.runs import signals


def main() -> None:
    """Import modules, then run torchrun."""
    parser = argparse.ArgumentParser(
        description=__doc__,
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
