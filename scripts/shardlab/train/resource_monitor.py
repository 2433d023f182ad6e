"""Resource use of the ranks during training, sampled by a thread, which the training never waits for."""

import json
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psutil
import torch.distributed as dist

from shardlab.records.metrics import USED
from shardlab.runtime import device
from shardlab.runtime.distributed import World
from shardlab.train.metrics_log import MetricsLog

FIRST = 1.0
"""Seconds until the first sample, so that short runs have one."""
LATER = 0.25
"""Delay of rank 0, in seconds, before it writes what the ranks have published."""


class Usage:
    """Thread on each rank that samples its process and its device, and publishes them to rank 0 through the job's
    store.

    A record of metrics.jsonl (kind ``usage``) has one value per rank of each: ``cpu_cores`` (cores busy, mean since the
    previous sample), ``memory_bytes`` (resident), ``device_use`` (fraction of the time that a kernel ran),
    ``device_memory_bytes`` (allocated on the device, by all processes), ``watts`` (of the device); null if there is no
    device or its driver does not report it.
    """

    def __init__(self, world: World, log: MetricsLog, seconds: float | None, step: Callable[[], int]) -> None:
        """Sample every ``seconds`` (None: never); ``step`` returns the training's current step."""
        self.world, self.log, self.seconds, self.step = world, log, seconds, step
        self._end = threading.Event()
        self._store: Any = dist.distributed_c10d._get_default_store() if world.size > 1 else None  # type: ignore[no-untyped-call]
        self._process = psutil.Process()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self.seconds is not None:
            self._process.cpu_percent()  # the first call only starts the count
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=FIRST)

    def _watch(self) -> None:
        assert self.seconds is not None
        wait = min(FIRST, self.seconds) + LATER * self.world.is_rank0
        while not self._end.wait(wait):
            wait = self.seconds
            try:
                reports = self._exchange(self.sample())
            except (RuntimeError, ValueError, OSError, psutil.Error):
                return  # the job is ending
            if self.world.is_rank0 and not self._end.is_set():
                values = {name: [each.get(name) for each in reports] for name in USED}
                self.log.write("usage", step=self.step(), **values)

    def sample(self) -> dict[str, float | int | None]:
        """Return this rank's current use, under the names of a record."""
        cores = round(self._process.cpu_percent() / 100, 2)
        return {"cpu_cores": cores, "memory_bytes": self._process.memory_info().rss} | device.usage(self.world.device)

    def _exchange(self, local: dict[str, Any]) -> list[dict[str, Any]]:
        """Return on rank 0 the latest sample of each rank; an empty one for a rank without samples yet."""
        if self._store is None:
            return [local]
        self._store.set(f"usage/{self.world.rank}", json.dumps(local))
        if not self.world.is_rank0:
            return []
        keys = [f"usage/{rank}" for rank in range(self.world.size)]
        return [json.loads(self._store.get(key)) if self._store.check([key]) else {} for key in keys]
