"""Timeline of a rank in one step: its phases, and what it sent. In host seconds from the step's start."""

import time
from typing import Any

import torch

from shardlab.records.timeline import EVENTS_SHOWN, RANKS_SHOWN
from shardlab.runtime.distributed import World


class TimelineRecorder:
    """Recorded while the step is counted, which slows it down: the order is accurate, the times are not."""

    def __init__(self) -> None:
        self.phases: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self._begun = 0.0
        self._update = False

    def begin(self) -> None:
        """Start of the step."""
        self._begun = time.perf_counter()

    def update(self) -> None:
        """End of the backward pass; the optimizer follows."""
        if not self._update and len(self.phases) > 1 and self.phases[-1]["name"] == "forward":
            self.phases[-1]["name"] = "losses"  # summed over the ranks
        self._update = True

    def operator(self) -> None:
        """Record an operator: in a node of the backward pass, in a forward pass with gradients, or between the two."""
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
        """Record a collective that started at ``began`` (perf_counter) and sends ``size`` bytes."""
        if len(self.sent) < EVENTS_SHOWN:
            start = began - self._begun
            self.sent.append(
                {"start": start, "end": self._now(), "axis": axis, "collective": collective, "bytes": size}
            )

    def end(self) -> None:
        """End of the step."""
        self._close(self._now())

    def report(self, world: World) -> dict[str, Any]:
        """Return the timelines of the ranks that are shown, under the names of records/timeline.py; a collective."""
        local = (self.phases, self.sent) if world.rank < RANKS_SHOWN else ([], [])
        phases, sent = zip(*world.gather(local)[:RANKS_SHOWN], strict=True)
        return {"phases": phases, "sent": sent}

    def _close(self, now: float) -> None:
        if self.phases:
            self.phases[-1]["end"] = now

    def _now(self) -> float:
        return time.perf_counter() - self._begun
