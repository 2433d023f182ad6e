"""The models: sizes of the sources, operations of a step, a decoder that cannot see the future; what communicates."""

import numpy as np
import pytest
import torch
import torch.distributed._functional_collectives  # registers some of the operators
import torch.distributed.tensor._collective_utils

from helpers.common import build as build_model
from helpers.common import initial_weights, tiny_run, with_weights
from shardlab import models
from shardlab.measure import flops, traffic
from shardlab.runtime import tasks
from shardlab.settings import load, resolve


def build(workload, size="small", dtype="float32"):
    run = resolve.run(load.config({"size": size, "recipe": {"dtype": dtype}}), "single", workload)
    return with_weights(run)


@pytest.mark.parametrize(("workload", "count"), [("mlp", 38), ("mnist", 1_199_882), ("llama2", 18_089_216)])
def test_parameter_counts_of_the_sources(workload, count):
    assert models.parameter_count(build(workload, "source")) == count


def test_the_large_size_has_the_parameters_of_llama_2():
    config = load.config({"size": "70b", "workloads": ["llama2"], "ranks_per_node": 16})
    run = resolve.run(config, "fsdp_tp_pp", "llama2")
    assert (run.world_size, models.parameter_count(build_model(run))) == (16, 68_976_648_192)


def test_initial_weights_do_not_depend_on_what_is_drawn_before_and_follow_the_seed():
    run = resolve.run(load.config({}), "single", "vit")
    first = initial_weights(run)
    assert list(first) == list(models.state(build_model(run)))
    torch.rand(3)
    again = initial_weights(run)
    other = initial_weights(run.model_copy(update={"seed": run.seed + 1}))
    drawn = [name for name, value in first.items() if value.std() > 0]
    assert {"class_token", "positions", "patches.weight", "layers.1.up.weight", "head.weight"} <= set(drawn)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    assert first["layers.0.up.weight"].std() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(first["layers.0.up.weight"], first["layers.1.up.weight"])


def test_a_summary_s_decoder_cannot_see_the_future():
    """That padding does not matter tests/parity/test_reference.py shows."""
    model = build("xsum", dtype="float64")
    document, summary = torch.randint(3, 1024, (1, 30)), torch.randint(3, 1024, (1, 12))
    mask = torch.ones_like(document, dtype=torch.bool)
    before = model(document, summary, mask=mask)
    changed = summary.clone()
    changed[:, 8:] = 5
    torch.testing.assert_close(model(document, changed, mask=mask)[:, :8], before[:, :8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("workload", ["llama2", "moe"])
def test_a_decoder_computes_what_the_formula_of_palm_says(tiny_data, workload):
    """6 N + 12 L d s a token (Chowdhery et al., 2022, appendix B), N without embeddings and norms, and with the
    experts that are chosen alone.
    """
    run, length = tiny_run(workload), 32
    args = run.model.args
    task = tasks.load(run.task, tiny_data / workload, torch.float32, torch.device("cpu"))
    active = sum(
        p.numel() * (args["top_k"] / args["experts"] if ".experts." in name else 1)
        for name, p in build_model(run).named_parameters()
        if p.dim() > 1 and "embedding" not in name
    )
    found = flops.count_flops(run, task, task.micro_batch("train", np.arange(3)))
    assert found == 3 * length * (6 * active + 12 * args["layers"] * args["dim"] * length)


UNUSED = {"c10d.gather_", "c10d.scatter_", "_c10d_functional.batch_p2p_ops"}
"""Operators that no strategy uses; a training that does is refused."""


def test_every_operator_that_communicates_is_counted_silent_or_refused():
    """In this version of PyTorch; add a new one to its table. What is counted: tests/parity/theory.py."""
    every = {name.partition(".")[0].replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    counted = {name for name in every if name.partition(".")[0] in traffic.COUNTED}
    assert {name for name in counted if not traffic.collective_of(name)} == traffic.SENDS_NOTHING | UNUSED
