"""GPUs that are missing, split, in use or have an old driver; the cores of a rank; releases of PyTorch."""

import pytest

from helpers.common import program
from shardlab.runs import gpus
from shardlab.runs.gpus import listed, old_driver, other_torch, why_missing

CUDA = "13.0"
TWO = "0, NVIDIA H100 80GB HBM3, 580.95.05, Disabled, 4\n1, NVIDIA H100 80GB HBM3, 580.95.05, Disabled, 4\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Function that puts an nvidia-smi with these lines on the PATH; None: there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "DEVICES", tmp_path / "dev")
    for name in (*gpus.IN_CONTAINER, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def put(lines):
        if lines is not None:
            program(tmp_path / "nvidia-smi", f"printf '%s' '{lines}'")

    return put


@pytest.mark.parametrize(
    ("lines", "seen", "cuda", "rocm", "words"),
    [
        (None, 0, CUDA, None, "the job has none; request GPUs with slurm.gpus"),
        (TWO, 0, None, None, "this PyTorch is a CPU build; install one for the GPUs"),
        (TWO.replace("Disabled", "Enabled"), 1, CUDA, None, "split (MIG), and a process sees one instance"),
        (TWO, 2, CUDA, None, "lower ranks_per_node, or request more GPUs per node"),
    ],
)
def test_why_a_gpu_is_missing(driver, lines, seen, cuda, rocm, words):
    driver(lines)
    assert words in why_missing(seen, cuda, rocm)


def test_gpus_that_are_hidden_or_not_in_the_container(driver, tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    monkeypatch.setenv("APPTAINER_CONTAINER", "/train.sif")
    assert "without --nv; add it to container.flags" in why_missing(0, CUDA, None)
    driver(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "CUDA_VISIBLE_DEVICES=1 hides the others of 2" in why_missing(1, CUDA, None)


def test_a_driver_is_as_new_as_cuda_needs(driver):
    driver(TWO.replace("580.95.05", "470.82.01"))
    seen = old_driver(listed(), CUDA)
    assert "the driver 470.82.01 is too old for this PyTorch's CUDA 13.0, which needs 580 or newer" in seen
    assert why_missing(0, CUDA, None) == seen
    driver(TWO)
    assert old_driver(listed(), CUDA) is None


def test_releases_from_the_oldest_tested_one_to_the_pinned_one_are_taken():
    assert not any(other_torch(release, rocm=False) for release in ("2.13.0+cu130", "2.11.0", "2.12.1a0"))
    for release in ("2.10.1", "2.14.0"):
        sentence = f"PyTorch is {release}, but this project needs 2.11 to 2.13; install 2.13"
        assert other_torch(release, rocm=False) == sentence
