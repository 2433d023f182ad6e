"""Models of the transformers library as chains: what is before and after their layers, and what cannot be split."""

import copy

import pytest
import torch
import transformers

from helpers import transformers_models
from shardlab.models import _transformers
from shardlab.models._chain import INPUTS, Chain
from shardlab.models._library_chain import on_fake_tensors

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


def test_tables_that_the_library_keeps_are_not_fake_afterwards():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.BeitConfig(image_size=32, use_relative_position_bias=True, **sizes)
    pixels = torch.zeros(1, 3, 32, 32)
    with torch.device("meta"):
        model = transformers.BeitForImageClassification(config)
    with torch.no_grad(), on_fake_tensors(model):
        model(torch.zeros(1, 3, 32, 32))
    assert type(transformers.BeitForImageClassification(config)(pixels).logits) is torch.Tensor
