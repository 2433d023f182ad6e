"""Memory of modules on fake tensors, compared with that of the same step on real ones."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlab.measure.memory import Memory

ROWS, STEPS = 8, 16


class First(nn.Module):
    """A recurrent module's outputs, without its last states."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


def activations(module, x, fake):
    memory = Memory(torch.device("cpu"), fake=fake)
    # Those of the module are enough; looking for all of the process takes most of the time.
    there = [*module.parameters(), *module.buffers(), x]
    with mock.patch("shardlab.measure.memory._tensors_there", return_value=there), memory:
        module(x).sum().backward()
    return memory.figures()["largest"]["activations"]


def planned_and_measured(make, *shape, dtype=torch.float32):
    """Bytes of activations of a step on fake tensors and on real ones."""
    module = First(make()) if issubclass(type(make()), nn.RNNBase) else make()
    module = module.to(dtype)
    x = torch.randn(shape, dtype=dtype)
    measured = activations(copy.deepcopy(module), x, fake=False)
    module.to("meta")
    with FakeTensorMode(allow_non_fake_inputs=True):
        module.to_empty(device="cpu")
        x = torch.empty(shape, dtype=dtype)
        return activations(module, x, fake=True), measured


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("inputs", "hidden", "more"),
    [
        (32, 128, {"batch_first": True, "bidirectional": True}),
        (256, 64, {"num_layers": 2, "dropout": 0.1}),
        (64, 64, {}),
    ],
)
def test_a_plan_holds_the_workspace_of_an_lstm(inputs, hidden, more, dtype):
    """It is most of what an LSTM keeps, and PyTorch's fake tensors do not have it."""
    planned, measured = planned_and_measured(lambda: nn.LSTM(inputs, hidden, **more), ROWS, STEPS, inputs, dtype=dtype)
    assert measured <= planned <= 1.25 * measured


MODULES = {
    "gru": (lambda: nn.GRU(16, 16, 2), (8, 4, 16)),
    "rnn": (lambda: nn.RNN(16, 16, 2), (8, 4, 16)),
    "lstm with projections": (lambda: nn.LSTM(16, 16, proj_size=8), (8, 4, 16)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), (4, 4, 16, 16)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)), (4, 4, 16, 16)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), (4, 16)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16)), (4, 16)),
    "dropout": (lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)), (4, 16)),
    "max pool": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(2)), (4, 4, 16, 16)),
    "adaptive max pool": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.AdaptiveMaxPool2d(4)), (4, 4, 16, 16)),
    "transposed convolution": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 3)), (4, 4, 16, 16)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (4, 8, 16)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_plan_holds_what_a_module_keeps(name):
    """Saved statistics, masks and indices; a module with a kernel of its own must not need a workspace unseen."""
    make, shape = MODULES[name]
    planned, measured = planned_and_measured(make, *shape)
    assert planned == measured
