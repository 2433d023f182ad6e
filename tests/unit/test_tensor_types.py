"""A model's tensors have the types and values of plain PyTorch, from its constructor to files and twins."""

import foreign
import pytest
import reference
import torch
from foreign_models import MODELS
from torch import nn

from helpers.common import build, save_initial
from shardlab.errors import UserError
from shardlab.models import weights

FOREIGN = [name for name, entry in MODELS.items() if entry.kind in ("dtypes", "frozen")]
DTYPES = ("float32", "bfloat16")


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(foreign.registry, "names", foreign.registry.names)
    foreign.register()


def tensors(model):
    """Every name of every parameter and buffer, also of tied ones."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def check(actual, expected):
    """The same names, types, values and ties."""
    ours, theirs = tensors(actual), tensors(expected)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert ours[name].requires_grad == value.requires_grad, name
        torch.testing.assert_close(ours[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
    ties = [[{name for name in each if each[name] is each[first]} for first in each] for each in (ours, theirs)]
    assert ties[0] == ties[1]


def loaded(run, path):
    """The model as every stage builds it, with its weights from a file."""
    save_initial(run, path)
    model = build(run)
    weights.materialize(model, path, torch.device("cpu"))
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_model_is_what_its_constructor_makes(name, dtype, tmp_path):
    run = foreign.run_of(name, "single", dtype=dtype)
    torch.manual_seed(run.seed)
    plain = MODELS[name].model(**run.model.args)
    reference.in_precision(plain, getattr(torch, dtype))
    check(loaded(run, tmp_path / "weights"), plain)


class Holder(nn.Module):
    """One saved tensor."""

    def __init__(self, value):
        super().__init__()
        self.register_buffer("value", value)


@pytest.mark.parametrize("dtype", [*weights.DTYPES, torch.complex128], ids=str)
def test_a_file_holds_every_type_at_any_address(dtype, tmp_path):
    torch.manual_seed(0)
    for shape in ((), (0, 3), (3, 3)):
        value = (torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else None).abs() * 10).to(dtype)
        written = {"before": torch.tensor(True), "value": value}
        weights.save(written.items(), written, tmp_path / "file")
        model = Holder(torch.zeros_like(value))
        weights.materialize(model, tmp_path / "file", torch.device("cpu"), whole=False)
        assert model.value.dtype == dtype
        assert bytes(model.value.reshape(-1).view(torch.uint8)) == bytes(value.reshape(-1).view(torch.uint8))


def test_a_file_of_another_type_is_refused(tmp_path):
    """An index read as a float would be wrong from 2^24 on."""
    weights.save([("value", torch.ones(2))], {"value": torch.ones(2)}, tmp_path / "file")
    with pytest.raises(
        UserError, match=r"other weights than the model: value is F32 \(2,\) in the file, I64 \(2,\) in"
    ):
        weights.materialize(Holder(torch.zeros(2, dtype=torch.int64)), tmp_path / "file", torch.device("cpu"))
