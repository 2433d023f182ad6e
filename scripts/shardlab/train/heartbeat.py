"""Progress of each rank, so that a hang is attributed to the right one: PyTorch blames the rank that waited."""

import json
import math
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from shardlab.runtime.distributed import World

WARNED = 0.9
"""Fraction of the collectives' timeout after which a rank on a GPU reports its progress."""
COLLECTIVES = ("distributed_c10d.py", "_functional_collectives.py")


class Heartbeat:
    """Thread that publishes this rank's step through the job's store; a stopped process publishes nothing."""

    def __init__(self, world: World, seconds: float) -> None:
        """``seconds`` is the timeout of collectives."""
        self.world, self.step, self.seconds = world, 0, seconds
        self.interval = min(10.0, max(0.2, seconds / 20))
        self._beats = 0
        self._end = threading.Event()
        self._store: Any = dist.distributed_c10d._get_default_store() if world.size > 1 else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        if self._store is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; explain a collective that timed out.

        Raises:
            UserError: a collective timed out; names the ranks that lag and the collective.
        """
        try:
            if isinstance(error, RuntimeError) and "timed out" in str(error).lower():
                from shardlab.errors import UserError

                raise UserError(self._explain(error)) from error
        finally:
            self._end.set()  # not before: the others explain at the same time, and must not take this rank for dead

    def _beat(self) -> None:
        step, since = self.step, time.monotonic()
        while not self._end.wait(self.interval):
            if not self._tell():
                return  # the job is ending
            if step != self.step:
                step, since = self.step, time.monotonic()
            # NCCL's watchdog ends the process without telling Python, so warn before it does.
            if self.world.device.type != "cpu" and time.monotonic() - since > WARNED * self.seconds:
                print(f"warning: {self._explain()}", file=sys.stderr, flush=True)
                since = math.inf

    def _tell(self) -> bool:
        """Publish this rank's progress; False if the store is gone."""
        self._beats += 1
        try:
            self._store.set(f"beat/{self.world.rank}", f"{self.step} {self._beats}")
        except (RuntimeError, ValueError):
            return False
        return True

    def _explain(self, error: BaseException | None = None) -> str:
        frames = traceback.extract_tb(error.__traceback__) if error else []
        names = [frame.name for frame in frames if frame.filename.endswith(COLLECTIVES)]
        what = _last_collective() or (names[-1] if names else "a collective")
        waited = f"rank {self.world.rank} timed out in step {self.step} ({what})"
        if error is None:
            waited = (
                f"rank {self.world.rank} has been in step {self.step} for {WARNED * self.seconds:.0f} s; collectives "
            )
            waited += f"time out after {self.seconds:.0f} s (NCCL's flight records: nccl_rank_* in the run's folder)"
        others = [rank for rank in range(self.world.size) if rank != self.world.rank]
        first = {rank: self._told(rank) for rank in others}
        for _ in range(4):
            time.sleep(self.interval)
            self._tell()
        silent = [rank for rank in others if self._told(rank) == first[rank]]
        steps = {rank: int(reported.split()[0]) for rank, reported in first.items() if reported}
        if silent:
            who = "; ".join(f"rank {rank} has not responded since step {steps.get(rank, 0)}" for rank in silent)
        elif late := [rank for rank, step in steps.items() if step < self.step]:
            who = "; ".join(f"rank {rank} is still in step {steps[rank]}" for rank in late)
        else:
            who = "all ranks are alive and in this step"
        return f"{who}: {waited}. The last checkpoint is kept; run the same command again to resume from it."

    def _told(self, rank: int) -> str:
        try:
            key = f"beat/{rank}"
            return str(self._store.get(key).decode()) if self._store.check([key]) else ""
        except (RuntimeError, ValueError):
            return ""


def _last_collective() -> str:
    """Return the collective that this rank entered last, from PyTorch's flight recorder; "" if it recorded none.

    gloo records, too (pytorch pull request 189363); NCCL's watchdog dumps its own records.
    """
    from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

    entries = json.loads(_dump_fr_trace_json(True, False)).get("entries", [])
    if not entries:
        return ""
    last = max(entries, key=lambda entry: entry["record_id"])
    sizes = ", ".join("x".join(map(str, size)) or "a scalar" for size in last["input_sizes"])
    dtypes = ", ".join(sorted({dtype.lower() for dtype in last["input_dtypes"]}))
    group = last["process_group"][-1]
    number = last["p2p_seq_id"] if last["is_p2p"] else last["collective_seq_id"]
    return f"{last['profiling_name']} {number} of group {group}" + f": {sizes} {dtypes}" * bool(sizes)
