"""Where each rank stands, so that a hang can be laid at the right door: PyTorch blames whoever waited."""

import threading
import time
import traceback
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from shardlab.training.distributed import World

COLLECTIVES = ("distributed_c10d.py", "_functional_collectives.py")


class Heartbeat:
    """A thread that tells the others this rank's step, through the job's store: a stopped process tells nothing."""

    def __init__(self, world: World, seconds: float) -> None:
        """``seconds`` is after how long a collective is given up."""
        self.world, self.step = world, 0
        self.interval = min(10.0, max(0.2, seconds / 20))
        self._end = threading.Event()
        self._store: Any = dist.distributed_c10d._get_default_store() if world.size > 1 else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        if self._store is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; a collective that was given up is explained.

        Raises:
            UserError: it was, with the ranks that lag and the collective's name.
        """
        self._end.set()
        if isinstance(error, RuntimeError) and "timed out" in str(error).lower():
            from shardlab.errors import UserError

            raise UserError(self._explain(error)) from error

    def _beat(self) -> None:
        count = 0
        while not self._end.wait(self.interval):
            count += 1
            try:
                self._store.set(f"beat/{self.world.rank}", f"{self.step} {count}")
            except (RuntimeError, ValueError):
                return  # the job ends

    def _explain(self, error: BaseException) -> str:
        names = [
            frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(COLLECTIVES)
        ]
        waited = f"rank {self.world.rank} waited in vain in step {self.step} ({names[-1] if names else 'a collective'})"
        others = [rank for rank in range(self.world.size) if rank != self.world.rank]
        first = {rank: self._told(rank) for rank in others}
        time.sleep(4 * self.interval)
        silent = [rank for rank in others if self._told(rank) == first[rank]]
        steps = {rank: int(told.split()[0]) for rank, told in first.items() if told}
        if silent:
            who = "; ".join(f"rank {rank} gives no sign of life since step {steps.get(rank, 0)}" for rank in silent)
        elif late := [rank for rank, step in steps.items() if step < self.step]:
            who = "; ".join(f"rank {rank} is still in step {steps[rank]}" for rank in late)
        else:
            who = "all ranks live and are in this step"
        return f"{who}: {waited}. The last checkpoint stays, and the same call goes on from it."

    def _told(self, rank: int) -> str:
        try:
            key = f"beat/{rank}"
            return str(self._store.get(key).decode()) if self._store.check([key]) else ""
        except (RuntimeError, ValueError):
            return ""
