"""When a rank did what in one step: its phases, and what it sent. By the host's clock, from the step's begin."""

import time
from typing import Any

import torch

from shardlab.report.timeline import EVENTS_SHOWN, RANKS_SHOWN
from shardlab.training.distributed import World


class Timeline:
    """Filled while the step is counted, which makes it slower than others: the order is true, the times are not."""

    def __init__(self) -> None:
        self.phases: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self._begun = 0.0
        self._update = False

    def begin(self) -> None:
        """The step begins."""
        self._begun = time.perf_counter()

    def update(self) -> None:
        """The backward pass is over: what comes is the optimizer."""
        if not self._update and len(self.phases) > 1 and self.phases[-1]["name"] == "forward":
            self.phases[-1]["name"] = "losses"  # summed up over the ranks
        self._update = True

    def operator(self) -> None:
        """An operator runs: in a node of the backward pass, or with gradients on for one, or in what stands between."""
        name = self.phases[-1]["name"] if self.phases else "forward"
        if self._update:
            name = "update"
        elif torch._C._current_autograd_node() is not None:
            name = "backward"
        elif torch.is_grad_enabled():
            name = "forward"
        if not self.phases or self.phases[-1]["name"] != name:
            now = self._now()
            self._close(now)
            self.phases.append({"name": name, "start": now, "end": now})

    def send(self, began: float, axis: str, collective: str, size: float) -> None:
        """A collective was started at ``began`` (perf_counter), which sends so many bytes."""
        if len(self.sent) < EVENTS_SHOWN:
            start = began - self._begun
            self.sent.append(
                {"start": start, "end": self._now(), "axis": axis, "collective": collective, "bytes": size}
            )

    def end(self) -> None:
        """The step ends."""
        self._close(self._now())

    def report(self, world: World) -> dict[str, Any]:
        """Under the names of report/timeline.py, of the ranks that are shown; a collective."""
        mine = (self.phases, self.sent) if world.rank < RANKS_SHOWN else ([], [])
        phases, sent = zip(*world.gather(mine)[:RANKS_SHOWN], strict=True)
        return {"phases": phases, "sent": sent}

    def _close(self, now: float) -> None:
        if self.phases:
            self.phases[-1]["end"] = now

    def _now(self) -> float:
        return time.perf_counter() - self._begun
