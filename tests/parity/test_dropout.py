"""Dropout masks: a function of (seed, step, data rank), the same where tensors are whole, different where split."""

from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from group import Group, newest, steps

from helpers.common import save_initial, tiny_run
from helpers.transformers_models import CONFIGS
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


def trained_in_halves(server, tiny_data, folder, run_of, halves):
    """Train under tp, and as one device does that draws both ranks' masks; the steps must be the same.

    ``halves``: context in which one device draws them.
    """
    run = run_of("tp")
    Group(server, folder, tiny_data).train([("tp", run)])
    initial = folder / f"{run.workload}-float64.safetensors"
    with halves:
        loop.train(run_of("single"), tiny_data / run.workload, initial, folder / "single", {})
    for actual, reference in zip(steps(folder / "tp"), steps(folder / "single"), strict=True):
        for key in ("loss", "grad_norm"):
            assert actual[key] == pytest.approx(reference[key], rel=1e-10), f"step {actual['step']}"


def of_ranks(forward, parts):
    """What two ranks compute of the parts of a split tensor, each with its own masks."""
    common, found = drawn(), []
    for rank, part in enumerate(parts):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(common + rank)
            found.append(forward(part))
    return found


def run_of(strategy):
    """mnist with dropout of a tensor that is whole under tensor parallelism, and of one that is split there."""
    run = tiny_run("mnist", strategy, dtype="float64")
    args = run.model.args | {"dropout1": 0.25, "dropout2": 0.5}
    return run.model_copy(update={"model": run.model.model_copy(update={"args": args})})


def test_tensor_parallel_ranks_share_the_masks_of_whole_tensors_and_have_their_own_of_split_ones(
    server, tiny_data, tmp_path
):
    def in_halves(layer, forward, x):
        return torch.cat(of_ranks(forward, x.chunk(2, -1)), -1) if layer.training else forward(x)

    def build(*args, make=parallel.build):
        engine = make(*args)
        layer = engine.parts[0].dropout2
        layer.forward = partial(in_halves, layer, layer.forward)
        return engine

    trained_in_halves(server, tiny_data, tmp_path, run_of, mock.patch.object(parallel, "build", build))


def test_heads_of_transformers_models_have_masks_of_their_own(server, tiny_data, tmp_path):
    """Dropout inside the attention function: one device draws the masks of two ranks' heads from their seeds, and a
    recomputation draws them once more.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.llama.modeling_llama import LlamaMLP

    CONFIGS["llama"].save_pretrained(tmp_path / "model")
    changes = {"name": f"hf:{tmp_path / 'model'}", "folder": str(tmp_path / "model"), "pretrained": False}
    changes |= {"tensor": {}, "blocks": [], "segments": 0}

    def run_of(strategy):
        kept = "none" if strategy == "single" else "full"
        run = tiny_run("llama2", strategy, dtype="float64", activation_checkpointing=kept)
        args = {"attention_dropout": 0.3, "vocab_size": run.model.args["vocab_size"]}
        return run.model_copy(update={"model": run.model.model_copy(update=changes | {"args": args})})

    def in_halves(module, *heads, **options):
        if not module.training:
            return sdpa_attention_forward(module, *heads, **options)
        parts = zip(*(each.chunk(2, 1) for each in heads[:3]), strict=True)
        found = of_ranks(lambda part: sdpa_attention_forward(module, *part, *heads[3:], **options)[0], parts)
        return torch.cat(found, 2), None

    def as_often(module, x, forward=LlamaMLP.forward):
        if module.training:
            drawn()
        return forward(module, x)

    halves = ExitStack()
    halves.enter_context(mock.patch.dict(AttentionInterface._global_mapping, {"sdpa": in_halves}))
    halves.enter_context(mock.patch.object(LlamaMLP, "forward", as_often))
    trained_in_halves(server, tiny_data, tmp_path, run_of, halves)


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
