"""The models: the sources' sizes, and a decoder that cannot see the future."""

import math

import pytest
import torch
import torch.nn.functional as F

from common import with_weights
from shardlab import configs, models, runs
from shardlab.errors import UserError


def build(workload, size="small", dtype="float32"):
    run = runs.resolve(configs.load_config({"size": size, "recipe": {"dtype": dtype}}), "single", workload)
    return with_weights(run)


@pytest.mark.parametrize(("workload", "count"), [("mlp", 38), ("mnist", 1_199_882), ("llama2", 18_089_216)])
def test_parameter_counts_of_the_sources(workload, count):
    assert models.parameter_count(build(workload, "source")) == count


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


def train_on_random_tokens(model, steps=150, vocabulary=64):
    """Lowest mean loss of 10 steps on fresh iid tokens; with a causal mask there is nothing to learn."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(vocabulary, (16, 17), generator=generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return min(sum(losses[i : i + 10]) / 10 for i in range(steps - 10))


def test_loss_on_random_tokens_stays_at_ln_v(monkeypatch):
    args = {"vocab_size": 64, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 64}
    torch.manual_seed(0)
    assert train_on_random_tokens(models.create("llama", args)) > math.log(64) - 0.01
    # The same check sees a decoder whose mask was forgotten: it copies the next token.
    original = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, is_causal, **k: original(*a, **k))
    torch.manual_seed(0)
    assert train_on_random_tokens(models.create("llama", args)) < math.log(64) - 0.5


def test_unknown_model_and_argument_are_user_errors():
    with pytest.raises(UserError, match="did you mean llama"):
        models.create("lama", {})
    with pytest.raises(UserError, match="model mlp cannot be built"):
        models.create("mlp", {"inputs": 6})
