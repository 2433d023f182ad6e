"""GPUs that are missing, split, hidden or have an old driver; releases of PyTorch."""

import os

import pytest

from helpers.common import program
from shardlab.runs import gpus
from shardlab.runs.gpus import listed, old_driver, other_torch, why_missing

CUDA = "13.0"
TWO = "0, NVIDIA H100 80GB HBM3, 580.95.05, Disabled\n1, NVIDIA H100 80GB HBM3, 580.95.05, Disabled\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Function that puts an nvidia-smi with these lines on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in gpus.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    return lambda lines: program(tmp_path / "nvidia-smi", f"printf '%s' '{lines}'")


def test_why_a_gpu_is_missing(driver, monkeypatch):
    keys = "set slurm.gpus, slurm.gpu_type or container.flags (--nv) in the site's file, or lower ranks_per_node"
    here = f"on {os.uname().nodename}"
    assert why_missing(CUDA, None) == f"nvidia-smi lists 0 {here}; {keys}"
    assert "this PyTorch is a CPU build; install one for the GPUs" in why_missing(None, None)
    driver(TWO.replace("Disabled", "Enabled"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    split = "they are split (MIG), and a process sees one instance; CUDA_VISIBLE_DEVICES is 1"
    assert why_missing(CUDA, None) == f"nvidia-smi lists 2 {here}; {split}; {keys}"


def test_a_driver_is_as_new_as_cuda_needs(driver):
    driver(TWO.replace("580.95.05", "470.82.01"))
    seen = old_driver(listed(), CUDA)
    assert "the driver 470.82.01 is too old for this PyTorch's CUDA 13.0, which needs 580 or newer" in seen
    assert why_missing(CUDA, None) == seen
    driver(TWO)
    assert old_driver(listed(), CUDA) is None


def test_releases_from_the_oldest_tested_one_to_the_pinned_one_are_taken():
    assert not any(other_torch(release, rocm=False) for release in ("2.13.0+cu130", "2.11.0", "2.12.1a0"))
    for release in ("2.10.1", "2.14.0"):
        sentence = f"PyTorch is {release}, but this project needs 2.11 to 2.13; install 2.13"
        assert other_torch(release, rocm=False) == sentence
