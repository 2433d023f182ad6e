"""A mixture of experts against transformers' classes and against plain formulas; load, balance, idle experts."""

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

from helpers.common import tiny_run
from shardlab import models
from shardlab.errors import UserError
from shardlab.models import _experts, export
from shardlab.models._experts import Experts
from shardlab.records import expert_choices
from shardlab.settings import pretrained

MIXTRAL = {"scores": "softmax", "shared": 0, "scale": 1.0, "bias_rate": 0.0, "auxiliary": 0.0}
GLM = {"scores": "sigmoid", "shared": 2, "scale": 1.5, "bias_rate": 0.01, "auxiliary": 0.0}


def made(**args):
    """A run with these arguments of the model, and the model, in float64; its biases are not 0."""
    run = tiny_run("moe", dtype="float64")
    run = run.model_copy(update={"model": run.model.model_copy(update={"args": run.model.args | args})})
    torch.manual_seed(0)
    model = models.construct(run.model, run.task).double()
    for name, buffer in model.named_buffers():
        assert name.endswith("router.bias")
        buffer.copy_(0.1 * torch.randn(len(buffer)))
    return run, model


@contextmanager
def in_float64():
    """The library computes norms, rotary angles and routers in float32, whatever the weights are."""
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


@pytest.mark.parametrize("args", [MIXTRAL, GLM], ids=["Mixtral", "Glm4Moe"])
def test_transformers_has_the_same_logits_loss_and_gradients(args, tmp_path):
    run, ours = made(**args)
    save_file(models.state(ours), tmp_path / "weights")
    export.write(run, tmp_path / "weights", tmp_path, tmp_path / "exported")
    tokens = torch.randint(0, 1024, (3, 17))
    logits, load = ours(tokens[:, :-1])
    assert torch.all(load[..., :8].sum(-1) == 2 * 16)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    kind = getattr(transformers, f"{pretrained.moe_class(run.model.args)}ForCausalLM")

    def read(folder):
        return kind.from_pretrained(tmp_path / folder, dtype=torch.float64, experts_implementation="eager")

    with in_float64():
        library = read("exported").train()
        found = library(tokens[:, :-1], use_cache=False).logits
        other = F.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())
        other.backward()
    torch.testing.assert_close(found, logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(other, loss, rtol=1e-12, atol=0)
    # Exported and read as weights are, gradients have the library's names and are stacked as there.
    save_file(models.state(ours) | {name: each.grad for name, each in ours.named_parameters()}, tmp_path / "gradients")
    export.write(run, tmp_path / "gradients", tmp_path, tmp_path / "of_gradients")
    expected = dict(read("of_gradients").named_parameters())
    for name, parameter in library.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-8, atol=1e-12, msg=name)


def test_balance_losses_of_samples_do_not_depend_on_the_batch_and_reach_the_router():
    _, model = made(auxiliary=1.0)
    tokens = torch.randint(0, 1024, (4, 16))

    def losses_load_and_imbalance(tokens):
        losses, load, imbalance = model(tokens)
        return losses, load[..., :-1], imbalance

    whole = losses_load_and_imbalance(tokens)
    for part in (slice(0, 1), slice(1, 4)):
        for value, expected in zip(losses_load_and_imbalance(tokens[part]), whole, strict=True):
            torch.testing.assert_close(value, expected[part])
    (whole[2].sum() + 0 * whole[0].sum()).backward()
    assert all(float(layer.router.weight.grad.abs().max()) > 0 for layer in model.layers)
    assert model.eval()(tokens).shape == (4, 16, 1024)


def test_the_grouped_product_equals_the_loop_also_for_idle_experts():
    torch.manual_seed(0)
    experts = Experts(16, 32, 4).bfloat16()
    counts = torch.tensor([3, 0, 6, 0], dtype=torch.int32)
    rows = torch.randn(9, 16, dtype=torch.bfloat16, requires_grad=True)
    matrices = experts.matrices()
    found, expected = _experts._grouped(rows, counts, *matrices), experts.compute(rows, counts)[0]
    torch.testing.assert_close(found, expected)
    wanted, gradient = [rows, *matrices], torch.randn_like(found)
    actual = torch.autograd.grad(found, wanted, gradient)
    for one, other in zip(actual, torch.autograd.grad(expected, wanted, gradient), strict=True):
        torch.testing.assert_close(one, other)
    assert all(torch.all(each[1] == 0) and torch.all(each[3] == 0) for each in actual[1:])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"top_k": 9}, "top_k 9 is not between 1 and the number of experts, 8"),
        ({"top_k": 1}, "with top_k 1 a normalized weight is always 1, and the router learns nothing"),
    ],
)
def test_experts_that_cannot_be(args, sentence):
    with pytest.raises(UserError, match=sentence):
        made(**args)


def test_flips_are_choices_that_the_other_run_does_not_make_in_any_order():
    choices = np.array([[[7, 2], [0, 1], [3, 4]], [[5, 6], [1, 2], [0, 300]]])
    other = choices[..., ::-1].copy()
    other[0, 1], other[1, 2, 0] = (1, 6), 5
    text = expert_choices.encode(choices)
    assert expert_choices.count_flips(text, expert_choices.encode(other)) == (2, 12)
