"""Tensors of every type are in files as they were; those of models: tests/parity/test_foreign_models.py."""

import pytest
import torch
from torch import nn

from shardlab.models import weights


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
