"""A rank that runs a script, as a fork of a server that has imported PyTorch: in milliseconds instead of seconds."""

import multiprocessing
import os
import runpy
import socket
import sys
import time
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.pipelining",
        "torch.distributed.tensor.parallel",
        "deepspeed",
    ]
)

SECONDS = 60
"""After which a script's ranks wait for one another for ever."""


def run(script, arguments, ranks, log, seconds=SECONDS):
    """Run a script on that many ranks, 1: as one process without any; the log is the message of its failure."""
    processes = [
        SERVER.Process(target=rank, args=(str(script), [*map(str, arguments)], environment, str(log)), daemon=True)
        for environment in (world(ranks) if ranks > 1 else [{}])
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    while any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes):
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    for process in processes:  # those that wait for one that failed
        process.kill()
        process.join()
    assert not any(process.exitcode for process in processes), Path(log).read_text()


def world(ranks):
    """The environment of each rank, as torchrun sets it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    return [common | {"MASTER_PORT": str(port), "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(ranks)]


def rank(script, arguments, environment, log):
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))  # as Python does for a script
    runpy.run_path(script, run_name="__main__")
