"""Ranks as forks of one process that has imported everything: starting one takes milliseconds instead of seconds.

    python ranks.py

reads one JSON object per line, {"ranks": N, "group": BOOL, "jobs": FILE, "log": FILE, "fresh": BOOL}; forks that many
ranks, each of which works off the jobs (worker.py); answers with one line, the status. Without a process group two
processes share the jobs. Forking is sound because nothing here has started a thread before, nor asked CUDA's driver for
anything; for ranks on GPUs ``fresh`` starts processes that share nothing with this one, in seconds.
"""

import gc
import json
import multiprocessing
import os
import signal
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
from script_rank import world

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
        jobs = json.loads(Path(requested["jobs"]).read_text())
        ranks = requested["ranks"]
        if requested["group"]:
            shares, environments = [jobs] * ranks, world(ranks)
        else:
            shares, environments = [jobs[0::2], jobs[1::2]], [{}, {}]
        start, target = (SPAWN, fresh_rank) if requested["fresh"] else (FORK, rank)
        processes = [
            start.Process(target=target, args=(share, environment, requested["log"]), daemon=True)
            for share, environment in zip(shares, environments, strict=True)
        ]
        for process in processes:
            process.start()
        print(wait(processes), flush=True)


def rank(jobs, environment, log):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    worker.main(jobs)


def fresh_rank(*args):
    """A rank in a new process that exits like a fork: without Python's finalization (see distributed.finish)."""
    gc.collect()
    gc.freeze()
    status = 1
    try:
        rank(*args)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(processes):
    """The first status that is not 0, or 0; ranks that wait for one that failed are ended."""
    while alive := [process for process in processes if process.is_alive()]:
        if any(process.exitcode for process in processes):
            for process in alive:
                process.kill()
        alive[0].join(timeout=0.05)
        time.sleep(0.01)
    return next((process.exitcode for process in processes if process.exitcode), 0)


if __name__ == "__main__":
    main()
