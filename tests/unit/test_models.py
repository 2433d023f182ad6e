"""The models: the sources' sizes, and a decoder that cannot see the future."""

import pytest
import torch

from helpers.common import build as build_model
from helpers.common import initial_weights, with_weights
from shardlab import models
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
