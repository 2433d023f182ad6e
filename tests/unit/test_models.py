"""The models: the sources' sizes, and a decoder that cannot see the future."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers

from helpers import transformers_models
from helpers.common import build as build_model
from helpers.common import initial_weights, save_initial, with_weights
from shardlab import models
from shardlab.errors import UserError
from shardlab.models import _transformers
from shardlab.models._chain import INPUTS, Chain
from shardlab.models.weights import materialize
from shardlab.parallel import parallelize
from shardlab.runtime import distributed
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


class Whole(torch.nn.Module):
    """A model that draws in its constructor, with a table that no file has."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("count", torch.ones(1))


def test_a_model_without_initialize_is_drawn_whole(monkeypatch, tmp_path):
    run = resolve.run(load.config({}), "single", "mlp")
    monkeypatch.setattr(models, "create", lambda name, args: Whole())
    save_initial(run, tmp_path / "weights")
    model = build_model(run)
    assert model.scale.is_meta
    materialize(model, tmp_path / "weights", torch.device("cpu"))
    assert model.scale.abs().sum() > 0
    assert model.table.tolist() == [0, 1, 2, 3]
    assert model.count.tolist() == [1]
    monkeypatch.setattr(Whole, "initialize", lambda self, module: None, raising=False)
    with pytest.raises(UserError, match="the model has weights but no reset_parameters"):
        save_initial(run, tmp_path / "weights")


def test_a_replica_that_recomputes_has_its_own_weights():
    """As DataParallel makes one for each GPU."""
    run = resolve.run(load.config({"recipe": {"activation_checkpointing": "full"}}), "dp", "vit")
    model = with_weights(run)
    parallelize.apply(run, model, distributed.World(0, 1, torch.device("cpu")))
    block = model.layers[0]
    x = torch.randn(2, 5, 48, requires_grad=True)
    replica = block._replicate_for_data_parallel()
    replica._modules = {**replica._modules, "down": torch.nn.Linear(96, 48)}
    assert not torch.equal(replica(x), block(x))


def test_llama_cannot_see_the_future():
    model = build("llama2", dtype="float64")
    tokens = torch.randint(1024, (2, 32))
    changed = tokens.clone()
    changed[:, 20:] = torch.randint(1024, (2, 12))
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before[:, 20:], after[:, 20:])


def test_summary_decoder_cannot_see_the_future_and_padding_does_not_matter():
    model = build("xsum", dtype="float64")
    document, summary = torch.randint(3, 1024, (1, 30)), torch.randint(3, 1024, (1, 12))
    mask = torch.ones_like(document, dtype=torch.bool)
    before = model(document, summary, mask=mask)
    changed = summary.clone()
    changed[:, 8:] = 5
    torch.testing.assert_close(model(document, changed, mask=mask)[:, :8], before[:, :8], rtol=0, atol=1e-12)
    longer, longer_mask = F.pad(document, (0, 9), value=0), F.pad(mask, (0, 9), value=False)
    torch.testing.assert_close(model(longer, summary, mask=longer_mask), before, rtol=0, atol=1e-12)


def test_every_workload_s_file_describes_its_model_and_segments_have_each_weight_once():
    for workload in load.names("workloads"):
        run = resolve.run(load.config({}), "single", workload)
        if run.model.folder:
            assert run.model.segments == 0
            continue
        chain = build_model(run)
        models.check_plan(run.model, chain)
        owned = [name for segment in chain.segments() for name in segment.names]
        for name in models.state(chain):
            assert sum(name == own or name.startswith(f"{own}.") for own in owned) == 1, name


SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 300}
CONFIGS = {
    # Its embeddings are scaled in the model's forward, its logits capped, its windows those of every second layer.
    "gemma2": transformers.Gemma2Config(
        **SIZES, intermediate_size=48, num_key_value_heads=2, head_dim=8, sliding_window=4, pad_token_id=0
    ),
    # Its layers return tuples, and positions come with the mask.
    "bloom": transformers.BloomConfig(n_layer=3, n_head=4, hidden_size=32, vocab_size=300),
    "gemma4": transformers.Gemma4TextConfig(
        **SIZES,
        intermediate_size=48,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=300,
        num_kv_shared_layers=0,
        pad_token_id=0,
    ),
}


@pytest.fixture
def created(tmp_path):
    """Function that makes a model in float64, as workloads have it."""

    def create(name):
        config = CONFIGS.get(name) or transformers_models.CONFIGS[name]
        task = "summarization" if name == "t5" else "language_modelling"
        config.save_pretrained(tmp_path)
        torch.manual_seed(0)
        return _transformers.create(task, str(tmp_path), {}, pretrained=False).double()

    return create


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bloom"])
@pytest.mark.parametrize("bounds", [(0, 2, 99), (0, -1, 99)])
def test_pieces_compute_what_the_whole_model_does(created, name, bounds):
    model = created(name)
    count = len(model.segments())
    bounds = [count + bound if bound < 0 else min(bound, count) for bound in bounds]
    tokens = torch.randint(300, (2, 9))
    expected = model(tokens)
    expected.square().mean().backward()
    gradients = {key: value.grad for key, value in model.named_parameters()}
    found = {}
    state = tokens
    pieces = [copy.deepcopy(model) for _ in bounds[1:]]
    for piece, start, stop in zip(pieces, bounds, bounds[1:], strict=False):
        piece.zero_grad()
        piece.cut(start, stop)
        state = piece(state, **{INPUTS: tokens})
    assert state.equal(expected)
    state.square().mean().backward()
    for key, value in (each for piece in pieces for each in piece.named_parameters()):
        found[key] = found.get(key, 0) + value.grad
    assert found.keys() == gradients.keys()
    assert all(torch.allclose(found[key], gradients[key], rtol=1e-12, atol=1e-15) for key in found)


def test_what_layers_have_besides_the_states_is_said(created):
    assert created("gemma2").obstacles() == []
    assert created("gemma4").obstacles() == ["they also take argument 1, which is computed from weights"]
    assert not isinstance(created("t5"), Chain)
