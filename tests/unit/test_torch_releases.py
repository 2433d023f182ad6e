"""Releases of PyTorch: which are taken, and what the older of them lack."""

import pytest
import torch

from shardlab.errors import UserError
from shardlab.parallel import pipeline
from shardlab.runs.gpus import other_torch
from shardlab.settings import torch_releases


def test_releases_from_the_oldest_tested_one_to_the_pinned_one_are_taken():
    assert not any(other_torch(release, rocm=False) for release in ("2.13.0+cu130", "2.11.0", "2.12.1a0"))
    for release in ("2.1.0", "2.10.1", "2.14.0", "3.0"):
        sentence = f"PyTorch is {release}, but this project needs 2.11 to 2.13; install 2.13"
        assert other_torch(release, rocm=False) == sentence
    assert "2.11 to 2.13; use an image with such a PyTorch for ROCm" in other_torch("2.9.1+rocm7.0", rocm=True)


def test_a_v_schedule_of_an_older_release_is_one_sentence():
    torch_releases.require_whole_pipelines("V", "2.13.1+cu130")
    with pytest.raises(UserError, match=r"^V needs PyTorch 2.13 or newer, and this is 2.11.0; use such an image, or"):
        torch_releases.require_whole_pipelines("V", "2.11.0")


@pytest.mark.parametrize(
    ("release", "grad", "refused"), [("2.11.0", True, True), ("2.11.0", False, False), ("2.13.0", True, False)]
)
def test_a_stage_of_an_older_release_hands_on_no_integers_in_training(monkeypatch, release, grad, refused):
    """PyTorch would ask for their gradients."""
    monkeypatch.setattr(torch, "__version__", release)
    values = (torch.zeros(2, requires_grad=True), torch.zeros(2, dtype=torch.int64))
    with torch.set_grad_enabled(grad):
        if refused:
            with pytest.raises(UserError, match=r"stages hand on integers, .* needs PyTorch 2.13 or newer"):
                pipeline._boundary(None, (), values, splits_backward=False)
        else:
            assert pipeline._boundary(None, (), values, splits_backward=False)[1] is values[1]
