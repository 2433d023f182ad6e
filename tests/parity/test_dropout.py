"""Dropout masks: a function of (seed, step, data rank), the same where tensors are whole, different where split."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from group import newest, steps
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.common import save_initial, tiny_run
from shardlab import models
from shardlab.models import weights
from shardlab.report import metrics
from shardlab.runs import loop
from shardlab.settings.mesh import ParallelDims
from shardlab.strategies.tensor import _Dropout
from shardlab.training import batches, tasks

SHARES = {"dp_replicate": 2, "pp": 2, "dp_shard": 2, "tp": 2}


def seed(number, **place):
    """Seed of a step on the rank with these coordinates."""
    dims = ParallelDims(SHARES)
    place = dict.fromkeys(SHARES, 0) | place
    steps = batches.Steps.__new__(batches.Steps)
    steps.order = SimpleNamespace(seed=1)
    steps.world = SimpleNamespace(data_rank=dims.data_rank(place), stage=dims.stage(place))
    return steps._seed(number)


def test_ranks_that_share_samples_draw_the_same_and_all_others_their_own():
    assert seed(0, tp=1) == seed(0)
    others = [seed(1), seed(0, dp_shard=1), seed(0, dp_replicate=1), seed(0, pp=1)]
    assert len({seed(0), *others}) == 5


def own_masks(rank):
    module = nn.Dropout(0.5)
    _Dropout()._apply(module, SimpleNamespace(get_local_rank=lambda: rank))
    return module


def test_ranks_of_a_split_tensor_draw_their_own_masks_from_the_common_generator():
    drawn, after = {}, {}
    for rank in (0, 1):
        torch.manual_seed(3)
        drawn[rank] = own_masks(rank)(torch.ones(1000))
        after[rank] = torch.rand(3).tolist()
    assert 300 < int((drawn[0] != drawn[1]).sum()) < 700, "half of the units, as of two independent masks"
    assert after[0] == after[1], "what is whole goes on with the same masks"
    torch.manual_seed(3)
    assert own_masks(0)(torch.ones(1000)).equal(drawn[0])
    module = own_masks(1).eval()
    assert module(torch.ones(9)).equal(torch.ones(9))


def test_recomputation_draws_the_same_masks():
    torch.manual_seed(0)
    module, x = own_masks(1), torch.ones(1000, requires_grad=True)
    kept = checkpoint(lambda x: module(x * x), x, use_reentrant=False)
    kept.sum().backward()
    assert x.grad.equal(2 * kept.detach())


def test_a_run_that_goes_on_draws_the_masks_of_one_that_did_not_stop(tiny_data, tmp_path):
    run = tiny_run("mnist", dtype="float64")
    args = run.model.args | {"dropout1": 0.25, "dropout2": 0.5}
    run = run.model_copy(update={"model": run.model.model_copy(update={"args": args})})
    half = run.model_copy(update={"recipe": run.recipe.model_copy(update={"max_steps": 2, "checkpoint_every": 2})})
    save_initial(run, tmp_path / "initial")
    for name, settings, resume in (("whole", run, None), ("half", half, None), ("rest", run, "half")):
        checkpoint = resume and newest(tmp_path / resume)
        loop.train(settings, tiny_data / "mnist", tmp_path / "initial", tmp_path / name, {}, resume=checkpoint)
    losses = {name: [step["loss"] for step in steps(tmp_path / name)] for name in ("whole", "half", "rest")}
    assert losses["half"] + losses["rest"] == losses["whole"]
    assert len(set(losses["whole"])) == 4
    assert_validated_without_dropout(run, tiny_data / "mnist", tmp_path / "whole")


def assert_validated_without_dropout(run, data, folder):
    task = tasks.load(run.task, data, torch.float64, torch.device("cpu"))
    model = models.build(run.model, run.task, torch.float64)
    weights.materialize(model, folder / "model.safetensors", torch.device("cpu"))
    batch = task.batch("validation", np.arange(task.samples("validation")))
    with torch.no_grad():
        loss = task.loss(task.outputs(model.eval(), batch), batch) / task.samples("validation")
    assert metrics.read(folder / "metrics.jsonl")[-1]["loss"] == pytest.approx(float(loss), rel=1e-12)
