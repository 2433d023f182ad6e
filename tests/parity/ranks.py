"""Ranks as forks of one process that has imported everything: starting one takes milliseconds instead of seconds.

    python ranks.py

reads one JSON object per line, see group.Server; forks that many ranks, each of which works off the jobs of a file
(worker.py) or runs a script; answers with one line, the status. Without a process group two processes share the jobs.
Forking is sound because nothing here has started a thread before, nor asked CUDA's driver for anything; for ranks on
GPUs ``fresh`` starts processes that share nothing with this one, in seconds.
"""

import gc
import json
import math
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import deepspeed  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import transformers.modeling_utils  # noqa: F401  (which the first model of the library imports, in seconds)
import worker

from shardlab.models import _transformers  # noqa: F401
from shardlab.parallel import fsdp, model_parallel, native, pipeline, tensor, zero  # noqa: F401
from shardlab.settings import code_fingerprint

FORK, SPAWN = (multiprocessing.get_context(name) for name in ("fork", "spawn"))


def main():
    # Ends the ranks, too, which are daemons of this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    torch.set_num_threads(1)
    code_fingerprint.digest_all()
    gc.collect()
    gc.freeze()  # each case collects, and looks through all objects for tensors: not through those of the imports
    serve()


def serve():
    for line in sys.stdin:
        requested = json.loads(line)
        ranks, script = requested["ranks"], requested.get("script")
        if script:
            shares = [script] * ranks
        else:
            jobs = json.loads(Path(requested["jobs"]).read_text())
            shares = [jobs] * ranks if requested["group"] else [jobs[0::2], jobs[1::2]]
        environments = world(ranks) if requested["group"] else [{}] * len(shares)
        start = SPAWN if requested.get("fresh") else FORK
        processes = [
            start.Process(target=rank, args=(run if script else worker.main, *each, requested["log"]), daemon=True)
            for each in zip(shares, environments, strict=True)
        ]
        for process in processes:
            process.start()
        print(wait(processes, requested.get("seconds", math.inf)), flush=True)


def world(ranks):
    """The environment of each rank, as torchrun sets it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    return [common | {"MASTER_PORT": str(port), "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(ranks)]


def rank(work, given, environment, log):
    """Do the work, and exit without Python's finalization (see distributed.finish)."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    status = 1
    try:
        work(given)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(words):
    """Run a script as Python does."""
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def wait(processes, seconds):
    """The first status that is not 0, or 0; ranks that wait for one that failed, or for ever, are ended."""
    end = time.monotonic() + seconds
    while alive := [process for process in processes if process.is_alive()]:
        if any(process.exitcode for process in processes) or time.monotonic() > end:
            for process in alive:
                process.kill()
        alive[0].join(timeout=0.05)
        time.sleep(0.01)
    return next((process.exitcode for process in processes if process.exitcode), 0)


if __name__ == "__main__":
    main()
