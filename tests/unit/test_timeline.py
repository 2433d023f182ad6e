"""The phases of a counted step, by the operators that run in it."""

import torch

from shardlab.measure import timeline_recorder
from shardlab.measure.timeline_recorder import TimelineRecorder


def test_a_step_has_its_phases_in_order(monkeypatch):
    """Forward, backward by autograd's nodes, the losses' sum where gradients are on again, then the update."""
    clock = iter(range(100))
    monkeypatch.setattr(timeline_recorder.time, "perf_counter", lambda: float(next(clock)))
    seen = TimelineRecorder()
    seen.begin()
    seen.operator()  # at 1
    weight = torch.ones(1, requires_grad=True)
    product = weight * 2
    product.register_hook(lambda _: seen.operator())  # at 2: in a node
    product.backward()
    seen.operator()  # at 3
    seen.update()
    with torch.no_grad():
        seen.operator()  # at 4
    seen.send(4.5, "tp", "all_reduce", 8.0)  # until 5
    seen.end()  # at 6
    named = [(phase["name"], phase["start"], phase["end"]) for phase in seen.phases]
    assert named == [("forward", 1, 2), ("backward", 2, 3), ("losses", 3, 4), ("update", 4, 6)]
    assert seen.sent == [{"start": 4.5, "end": 5.0, "axis": "tp", "collective": "all_reduce", "bytes": 8.0}]
