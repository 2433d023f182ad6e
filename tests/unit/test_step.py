"""One optimizer step: what a step that is not finite leaves unchanged."""

import math

import pytest
import torch

from helpers.common import save_initial, tiny_run
from shardlab import models
from shardlab.train import loop
from shardlab.train.step import train_step


@pytest.mark.parametrize("where", ["loss", "gradient", "nowhere"])
def test_a_skipped_step_changes_nothing(tiny_data, tmp_path, where):
    """Neither weights, nor their average, nor the biases that balance experts."""
    run = tiny_run("moe", on_nonfinite="skip", ema_decay=0.5)
    save_initial(run, tmp_path / "initial")
    state = loop.set_up(run, tiny_data / "moe", tmp_path / "initial", tmp_path, {}, loop.TrainOptions())
    engine = state.engine
    for average in engine.average.tensors.values():
        average.add_(1)

    def snapshot():
        averages = {f"average of {name}": value.clone() for name, value in engine.average.tensors.items()}
        return averages | {name: value.clone() for name, value in models.state(engine.models[0]).items()}

    def spoil(_, engine):
        if where == "gradient":
            next(iter(engine.parameters().values())).grad.fill_(math.nan)

    before = snapshot()
    if where == "loss":
        counted_loss = engine.task.counted_loss
        engine.task.counted_loss = lambda *args: counted_loss(*args) * math.nan
    metrics = train_step(engine, state.steps[0], state.world, spoil, skip=True).metrics(skip=True)
    assert metrics.finite == (where == "nowhere")
    changed = {name for name, value in snapshot().items() if not torch.equal(value, before[name])}
    assert changed == (set() if where != "nowhere" else before.keys())
