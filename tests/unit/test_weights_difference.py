"""The relative difference of each weight of two files; how the parity suite compares gradients."""

import sys

import pytest
import torch
from safetensors.torch import save_file

from shardlab.models import weights_difference as module
from shardlab.models.weights_difference import count_rounded, fixed_weights, weights_difference

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def difference(tmp_path):
    """Return the difference of one tensor from another, through files."""

    def of(value, reference):
        for name, tensor in (("a", value), ("b", reference)):
            save_file({"w": tensor}, tmp_path / name)
        return weights_difference(tmp_path / "a", tmp_path / "b")["w"]

    return of


@pytest.mark.parametrize(("block", "dtype"), [(1, torch.float64), (2**20, torch.bfloat16), (2, torch.complex64)])
def test_it_is_relative_to_the_norm_of_the_reference(difference, monkeypatch, block, dtype):
    monkeypatch.setattr(module, "BLOCK", block)
    reference = torch.tensor([[3.0, 0.0], [0.0, 4.0]], dtype=dtype)
    assert difference(reference, reference) == 0
    assert difference(reference + torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to(dtype), reference) == 0.4
    assert difference(reference / 2, reference) == 0.5
    assert difference(torch.zeros_like(reference) + 1, torch.zeros_like(reference)) == 2, "the norm itself"


def test_integers_are_exact(difference):
    large = 2**53
    assert difference(torch.tensor([large + 1]), torch.tensor([large])) == 1 / large
    assert difference(torch.tensor([True, False]), torch.tensor([True, True])) == pytest.approx(2**-0.5)
    assert difference(torch.tensor([1, 255], dtype=torch.uint8), torch.tensor([2, 0], dtype=torch.uint8)) > 100


def test_values_that_are_not_finite(difference):
    """Equal where both have them, as masks do; else the largest number."""
    mask = torch.tensor([4.0, -INF, 3.0, NAN])
    assert difference(mask, mask) == 0
    assert difference(torch.tensor([2.0, -INF, 3.0, NAN]), mask) == 0.4
    for other in ([4.0, INF, 3.0, NAN], [4.0, 1.0, 3.0, NAN], [4.0, -INF, NAN, NAN], [4.0, -INF, 3.0, 1.0]):
        assert difference(torch.tensor(other), mask) == sys.float_info.max


def test_integers_and_what_training_leaves_as_it_was_are_fixed(tmp_path):
    before = {"trained": torch.ones(2), "frozen": torch.ones(2), "count": torch.zeros(1, dtype=torch.int64)}
    save_file(before, tmp_path / "initial")
    save_file(before | {"trained": torch.tensor([1.0, 1.0001]), "count": before["count"] + 3}, tmp_path / "trained")
    assert fixed_weights(tmp_path / "trained", tmp_path / "initial") == ["count", "frozen"]


@pytest.mark.parametrize(("low", "block"), [(torch.bfloat16, 3), (torch.float16, 2**20)])
def test_rounded_values_are_those_that_a_training_changed(tmp_path, monkeypatch, low, block):
    """Not what it left as it was, what began at 0, overflows, or has few digits by its type."""
    monkeypatch.setattr(module, "BLOCK", block)
    torch.manual_seed(0)
    first = torch.randn(100)
    before = {"w": first, "frozen": first.to(low).float(), "bias": torch.zeros(4), "count": torch.zeros(1).long()}
    before |= {"low": first.to(low), "norm": torch.ones(4)}
    after = before | {"w": first + 0.1 * torch.randn(100), "count": before["count"] + 3, "low": before["low"] + 1}
    after |= {"norm": before["norm"] + torch.tensor([0.0, 1e-6, 0.25, INF])}
    without_master = {name: value.to(low).to(value.dtype) for name, value in after.items()}
    for name, weights in (("initial", before), ("single", after), ("run", without_master | {"bias": torch.ones(4)})):
        save_file(weights, tmp_path / name)
    places = {name: tmp_path / name for name in ("run", "single", "initial")}
    assert [*count_rounded(*places.values(), low).values()] == [101, 101, 1], "1.25 of the norm is in both"
    assert [*count_rounded(places["single"], places["single"], places["initial"], low).values()] == [102, 1, 1]
    assert [*count_rounded(*places.values(), torch.float32).values()] == [0, 0, 0]
