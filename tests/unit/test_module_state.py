"""What a forward pass changes in a model: a recomputation, an evaluation or a look at shapes leaves no trace of it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from shardlab.errors import UserError
from shardlab.parallel import parallelize
from shardlab.runtime.module_state import LocalState, kept


class Counted(nn.Module):
    """Counts its calls in an attribute and in buffers, one of them replaced, and draws from its own generator."""

    def __init__(self):
        super().__init__()
        self.calls, self.generator = 0, torch.Generator().manual_seed(1)
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.count += 1
        self.replaced = self.replaced + 1
        kept = torch.rand(x.shape[1:], generator=self.generator) > 0.3
        return x * kept * (1 + 0.1 * self.calls + 0.01 * self.count.item() + 0.001 * self.replaced)


class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.linspace(-1, 1, 64).sin().view(4, 16))

    def forward(self, x):
        nearest = torch.cdist(x.detach(), self.codes).argmin(-1)
        chosen = self.codes[nearest]
        self.codes.data[nearest] += 0.1 * (x.detach() - chosen)
        return x + (chosen - x).detach()


INSIDE = {
    "batch norm": lambda: nn.BatchNorm1d(16),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(16, 16)),
    "spectral norm as a hook": lambda: spectral_norm(nn.Linear(16, 16)),
    "counts": Counted,
    "codebook": Codebook,
}


class Model(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 16), inside(), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 16))
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.block(x))


def trained(inside, mode):
    """Losses and what is left of three steps of two micro-batches, both in flight at once, as in a pipeline."""
    torch.manual_seed(0)
    model = Model(inside).double()
    parallelize.recompute(model, ["block"], mode)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for _ in range(3):
        several = [model(torch.randn(8, 6, dtype=torch.float64)).square().sum() for _ in range(2)]
        for loss in several:
            loss.backward()
        losses += [loss.item() for loss in several]
        optimizer.step()
        optimizer.zero_grad()
    return losses, left(model)


def left(model):
    numbers = {name: getattr(module, "calls", None) for name, module in model.named_modules()}
    return numbers, {name: value.tolist() for name, value in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("mode", ["full", "selective", "alternate"])
@pytest.mark.parametrize("inside", INSIDE)
def test_a_recomputation_changes_no_result(inside, mode):
    assert trained(INSIDE[inside], mode) == trained(INSIDE[inside], "none")


@pytest.mark.parametrize(
    ("inside", "what"), [("batch norm", "running_mean of BatchNorm1d"), ("counts", "calls of Cou")]
)
def test_compiled_and_recomputed_code_must_not_change_its_module(inside, what):
    model = Model(INSIDE[inside])
    recipe = SimpleNamespace(activation_checkpointing="full", compile="blocks", compile_backend="eager")
    parallelize.recompute(model, ["block"], recipe.activation_checkpointing)
    parallelize.compile_forward(model, ["block"], recipe)
    with pytest.raises(UserError, match=rf"a forward pass changes {what}.*; set one of the two to none\.$"):
        model(torch.randn(8, 6))


@pytest.mark.parametrize("inside", INSIDE)
def test_what_is_kept_is_as_before(inside):
    model = Model(INSIDE[inside])
    before, buffers = left(model), {id(buffer) for buffer in model.buffers()}
    state = [module.generator.get_state() for module in model.modules() if isinstance(module, Counted)]
    with kept([model]):
        model(torch.randn(8, 6))
        assert left(model) != before
    assert left(model) == before
    assert {id(buffer) for buffer in model.buffers()} == buffers, "DDP holds these"
    assert all(model.block[1].generator.get_state().equal(each) for each in state)


def test_the_state_of_a_rank_is_what_no_file_of_weights_has():
    model, other = Model(Counted), Model(Counted)
    states = [LocalState([each]) for each in (model, other)]
    assert states[0].changed() == {}
    model(torch.randn(8, 6))
    changed = states[0].changed()
    assert sorted(changed) == ["block.1.calls", "block.1.count", "block.1.generator"]
    states[1].load(changed)
    other.load_state_dict(model.state_dict())
    assert left(other) == left(model)
    assert torch.rand(3, generator=other.block[1].generator).equal(torch.rand(3, generator=model.block[1].generator))
