"""GPUs that are missing or have an old driver; releases of PyTorch."""

from helpers.common import program
from shardlab.runs.gpus import listed, old_driver, other_torch, why_missing

CUDA = "13.0"
TWO = "0, NVIDIA H100 80GB HBM3, 580.95.05, Disabled\n1, NVIDIA H100 80GB HBM3, 580.95.05, Disabled\n"


def test_a_driver_is_as_new_as_cuda_needs(tmp_path, monkeypatch):
    """Or it is what is said of missing GPUs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "nvidia-smi", f"printf '%s' '{TWO.replace('580.95.05', '470.82.01')}'")
    seen = old_driver(listed(), CUDA)
    assert "the driver 470.82.01 is too old for this PyTorch's CUDA 13.0, which needs 580 or newer" in seen
    assert why_missing(CUDA, None) == seen
    program(tmp_path / "nvidia-smi", f"printf '%s' '{TWO}'")
    assert old_driver(listed(), CUDA) is None
    assert why_missing(CUDA, None).startswith("nvidia-smi lists 2 on ")


def test_releases_from_the_oldest_tested_one_to_the_pinned_one_are_taken():
    assert not any(other_torch(release, rocm=False) for release in ("2.13.0+cu130", "2.11.0", "2.12.1a0"))
    for release in ("2.10.1", "2.14.0"):
        sentence = f"PyTorch is {release}, but this project needs 2.11 to 2.13; install 2.13"
        assert other_torch(release, rocm=False) == sentence
