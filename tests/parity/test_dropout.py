"""Dropout masks: a function of (seed, step, data rank), the same where tensors are whole, different where split."""

from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from group import Group, newest, steps

from helpers.common import save_initial, tiny_run
from shardlab import parallel
from shardlab.parallel.tensor import drawn
from shardlab.runtime import batches
from shardlab.settings.mesh import ParallelDims
from shardlab.train import loop

SHARES = {"dp_replicate": 2, "pp": 2, "dp_shard": 2, "cp": 2, "tp": 2}


def seed(number, **place):
    """Seed of a step on the rank with these coordinates."""
    dims = ParallelDims(SHARES)
    place = dict.fromkeys(SHARES, 0) | place
    steps = batches.Steps.__new__(batches.Steps)
    steps.order = SimpleNamespace(seed=1)
    rank = np.ravel_multi_index([*place.values()], [*SHARES.values()])
    steps.world = SimpleNamespace(rank=rank, loss_part=dims.loss_part(place), stage=dims.stage(place))
    return steps._seed(number)


def test_ranks_with_the_same_activations_draw_the_same_and_all_others_their_own():
    assert seed(0, tp=1) == seed(0)
    others = [seed(1), seed(0, dp_shard=1), seed(0, dp_replicate=1), seed(0, pp=1), seed(0, cp=1)]
    assert len({seed(0), *others}) == 6


def run_of(strategy):
    """mnist with dropout of a tensor that is whole under tensor parallelism, and of one that is split there."""
    run = tiny_run("mnist", strategy, dtype="float64")
    args = run.model.args | {"dropout1": 0.25, "dropout2": 0.5}
    return run.model_copy(update={"model": run.model.model_copy(update={"args": args})})


def test_tensor_parallel_ranks_share_the_masks_of_whole_tensors_and_have_their_own_of_split_ones(
    server, tiny_data, tmp_path
):
    """One device that draws both ranks' masks takes the same steps."""

    def in_halves(layer, forward, x):
        if not layer.training:
            return forward(x)
        common, found = drawn(), []
        for rank, part in enumerate(x.chunk(2, -1)):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(common + rank)
                found.append(forward(part))
        return torch.cat(found, -1)

    def build(*args, make=parallel.build):
        engine = make(*args)
        layer = engine.parts[0].dropout2
        layer.forward = partial(in_halves, layer, layer.forward)
        return engine

    Group(server, tmp_path, tiny_data).train([("tp", run_of("tp"))])
    with mock.patch.object(parallel, "build", build):
        files = tiny_data / "mnist", tmp_path / "mnist-float64.safetensors", tmp_path / "single"
        loop.train(run_of("single"), *files, {})
    for actual, reference in zip(steps(tmp_path / "tp"), steps(tmp_path / "single"), strict=True):
        for key in ("loss", "grad_norm"):
            assert actual[key] == pytest.approx(reference[key], rel=1e-10), f"step {actual['step']}"


def test_a_run_that_goes_on_draws_the_masks_of_one_that_did_not_stop(tiny_data, tmp_path):
    run, drops = run_of("single"), []
    recipe = run.recipe.model_copy(update={"max_steps": 2, "checkpoint_interval_steps": 2})
    half = run.model_copy(update={"recipe": recipe})
    save_initial(run, tmp_path / "initial")
    for name, settings, resume in (("whole", run, None), ("half", half, None), ("rest", run, "half")):
        files = tiny_data / "mnist", tmp_path / "initial", tmp_path / name
        observe = lambda _, engine: drops.append(engine.parts[0].training)  # noqa: E731
        options = loop.TrainOptions(resume=resume and newest(tmp_path / resume), on_gradients=observe)
        loop.train(settings, *files, {}, options)
    assert drops == [True] * 8, "also in the step after a validation"
    losses = {name: [step["loss"] for step in steps(tmp_path / name)] for name in ("whole", "half", "rest")}
    assert losses["half"] + losses["rest"] == losses["whole"]
    assert len(set(losses["whole"])) == 4
