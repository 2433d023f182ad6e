"""Monitoring of a training: its line per step, TensorBoard events."""

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event

from helpers.common import save_initial, tiny_run
from shardlab.records import metrics
from shardlab.train import loop
from shardlab.train.metrics_log import EVENTS


def events(folder):
    """tag: {step: value} of the event files of a folder, in the format of TensorBoard: length, CRC, Event, CRC."""
    found = {}
    for path in sorted(folder.glob("events.*")):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event, content = Event.FromString(content[12 : 12 + length]), content[12 + length + 4 :]
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_the_events_are_the_metrics(tiny_data, tmp_path):
    run = tiny_run("llama2", max_steps=3)
    save_initial(run, tmp_path / "initial")
    options = loop.TrainOptions(tensorboard=True)
    assert loop.train(run, tiny_data / "llama2", tmp_path / "initial", tmp_path, {}, options)
    lines = [line for line in metrics.read(tmp_path / metrics.NAME) if line["kind"] == "train"]
    drawn = events(tmp_path / EVENTS)
    for name in ("loss", "grad_norm", "learning_rate", "seconds"):
        assert drawn[f"train/{name}"] == pytest.approx({line["step"]: line[name] for line in lines}, rel=1e-6)
    assert drawn.keys() >= {"validation/loss"}


def test_compiled_blocks_stay_compiled_after_the_counted_step(tiny_data, tmp_path, monkeypatch):
    """Counting is by dispatch modes, under which dynamo would skip their frames for good."""
    calls, of_step = [], []

    @torch._dynamo.register_backend
    def counting(graph, _):
        return lambda *values: calls.append(1) or graph.forward(*values)

    take = loop.train_step

    def watched(*args, **options):
        calls.clear()
        taken = take(*args, **options)
        of_step.append(len(calls))
        return taken

    monkeypatch.setattr(loop, "train_step", watched)
    run = tiny_run("mlp", compile="blocks", compile_backend="counting", max_steps=6, epochs=9, global_batch_size=4)
    save_initial(run, tmp_path / "initial")
    assert loop.train(run, tiny_data / "mlp", tmp_path / "initial", tmp_path, {})
    assert of_step == [2, 2, 0, 2, 2, 2], "two blocks; the third step is counted"
