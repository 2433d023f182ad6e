"""Ranks as forks of this process, which has imported everything; they stay for all strategies with as many of them."""

import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist

from shardlab.errors import UserError
from shardlab.files import ROOT
from shardlab.runs.forks import Fork
from shardlab.runtime import distributed, one_node
from shardlab.settings.sites import SiteRuntime

SECONDS = 60
"""Time of one call on all ranks."""
PATIENCE = 1.5
"""Seconds in which the other ranks may still answer after one failed: they may wait for it."""
ERROR = re.compile(r"\w*Error\b|\bwhat\(\)|[Ff]atal")
"""In a line of stderr that says why a process ends."""


IMPORTS = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "transformers.distributed.tensor_parallel",
    "transformers.modeling_utils",
    "shardlab.models._transformers",
    *(
        f"shardlab.parallel.{name}"
        for name in ("ddp", "fsdp", "library_tensor", "model_parallel", "native", "pipeline", "tensor")
    ),
)
"""Modules that each fork would import again."""


class Answer(NamedTuple):
    """What a call gave on a rank."""

    value: Any = None
    refusal: str | None = None
    """The sentence of a UserError."""
    failure: str | None = None
    """Any other exception, with its place."""


class Ranks:
    """A process group of forks, over gloo. Not started before the first call, and anew after a failure."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._running: list[tuple[Fork, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, function: Callable[..., Any], *args: Any) -> list[Answer]:
        """Return what a function of a module gives on each rank; of ranks that waited for one that failed, a failure
        that says so.
        """
        if not self._running:
            self._start()
        for _, connection in self._running:
            connection.send((function, args))
        answers: dict[int, Answer] = {}
        end = time.monotonic() + SECONDS
        while len(answers) < self.count and (left := end - time.monotonic()) > 0:
            waiting = {c: rank for rank, (_, c) in enumerate(self._running) if rank not in answers}
            for ready in wait([*waiting], timeout=left):
                rank = waiting[ready]  # type: ignore[index]
                answers[rank] = _received(ready) or self._last_words(rank)  # type: ignore[arg-type]
                if answers[rank].refusal or answers[rank].failure:
                    end = min(end, time.monotonic() + PATIENCE)
        # Ranks that stopped at the same sentence did so before they waited for each other, and can go on.
        together = len(answers) == self.count and len({answer.refusal for answer in answers.values()}) == 1
        if not together or any(answer.failure for answer in answers.values()):
            self.stop()
        return [answers.get(rank, Answer(failure="no answer in time")) for rank in range(self.count)]

    def _last_words(self, rank: int) -> Answer:
        """Return how a rank died, and the last error that it wrote: of a library in C++, nothing else shows it."""
        status = self._running[rank][0].wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        written = self._store.with_name(f"{rank}.txt").read_text(encoding="utf-8", errors="replace")
        errors = [line.strip() for line in written.splitlines() if ERROR.search(line)]
        return Answer(failure=": ".join([f"the process died ({how})", *errors[-1:]]))

    def stop(self) -> None:
        """End the ranks."""
        for fork, connection in self._running:
            fork.send_signal(signal.SIGKILL)
            fork.wait()
            connection.close()
        self._running = []

    def _start(self) -> None:
        import_for_ranks()
        self._folder = tempfile.TemporaryDirectory()
        self._store = Path(self._folder.name) / "store"
        for rank in range(self.count):
            ours, theirs = Pipe()
            self._running.append((Fork(partial(_serve, rank, self.count, self._store, theirs)), ours))
            theirs.close()


def import_for_ranks() -> None:
    """Import what ranks need, in the process that they are forked from."""
    for name in IMPORTS:
        import_module(name)


def _received(connection: Connection) -> Answer | None:
    """Return an answer; None if the process died."""
    try:
        answer: Answer = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return answer


def _serve(rank: int, count: int, store: Path, connection: Connection) -> None:
    """Answer calls until the parent ends this process, or ends."""
    os.dup2(os.open(store.with_name(f"{rank}.txt"), os.O_WRONLY | os.O_CREAT), 2)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    if count > 1:
        one_node.stay_inside()
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=SECONDS),
        )
    torch.set_num_threads(1)
    distributed.start(SiteRuntime())
    while True:
        function, args = connection.recv()
        connection.send(_answer(function, args))


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> Answer:
    try:
        return Answer(value=function(*args))
    except UserError as error:
        return Answer(refusal=str(error))
    except BaseException as error:
        lines = str(error).strip().splitlines()
        said = f": {lines[0]}" if lines else ""
        return Answer(failure=f"it stops in {_place(error)} with {type(error).__name__}{said}")


def _place(error: BaseException) -> str:
    """Return the file and line where the library or this project was when an error came."""
    frames = traceback.extract_tb(error.__traceback__)
    known = [each for each in frames if "/torch/" not in each.filename and not each.filename.endswith("_float64.py")]
    frame = (known or frames)[-1]
    path = frame.filename.rpartition("site-packages/")[2].removeprefix(f"{ROOT}/")
    return f"{path}:{frame.lineno}"
