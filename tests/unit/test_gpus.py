"""Messages about GPUs that are missing, split, in use or have an old driver, with a fake nvidia-smi."""

import pytest

from shardlab.errors import UserError
from shardlab.runs import gpus
from shardlab.runs.gpus import busy, listed, old_driver, why_missing
from shardlab.runtime import device
from shardlab.settings import cuda as versions

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
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '%s' '{lines}'\n")
            (tmp_path / "nvidia-smi").chmod(0o755)

    return put


def test_no_gpus_at_all(driver):
    assert listed() == []
    assert "the job has none; request GPUs with slurm.gpus" in why_missing(0, CUDA, None)


def test_a_container_without_nv(driver, tmp_path, monkeypatch):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    monkeypatch.setenv("APPTAINER_CONTAINER", "/train.sif")
    assert "without --nv; add it to container.flags" in why_missing(0, CUDA, None)


def test_a_build_of_pytorch_for_cpus(driver):
    driver(TWO)
    assert why_missing(0, None, None).startswith("this PyTorch is a CPU build; install one for the GPUs")


@pytest.mark.parametrize(("version", "needed"), [("13.0", 580), ("12.6", 525), ("99.1", None), (None, None)])
def test_a_driver_is_as_new_as_cuda_needs(driver, version, needed):
    driver(TWO.replace("580.95.05", "470.82.01"))
    assert versions.driver_needed(version) == needed
    seen = old_driver(listed(), version)
    if needed is None:
        assert seen is None
        return
    assert f"the driver 470.82.01 is too old for this PyTorch's CUDA {version}, which needs {needed} or newer" in seen
    assert why_missing(0, version, None) == seen
    driver(TWO)
    assert old_driver(listed(), version) is None


def test_a_gpu_that_is_split(driver):
    driver(TWO.replace("Disabled", "Enabled"))
    assert "split (MIG), and a process sees one instance" in why_missing(1, CUDA, None)


def test_gpus_that_are_hidden(driver, monkeypatch):
    driver(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "CUDA_VISIBLE_DEVICES=1 hides the others of 2" in why_missing(1, CUDA, None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert why_missing(2, CUDA, None).startswith("lower ranks_per_node, or request more GPUs per node")


def test_rocm(driver):
    assert "ROCR_VISIBLE_DEVICES" in why_missing(0, None, "7.0")


def test_a_gpu_that_another_process_uses(driver):
    driver(TWO.replace(", 4\n1,", ", 23654\n1,"))
    (sentence,) = busy(listed())
    assert sentence.startswith(
        "GPU 0 (NVIDIA H100 80GB HBM3) has 23.1 GiB in use by another process; request exclusive"
    )
    driver(TWO)
    assert busy(listed()) == []


def test_lines_of_a_driver_that_fails_are_no_gpus(driver):
    driver("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.\n")
    assert listed() == []
    driver("0, NVIDIA A100, 580.95.05, [N/A], [N/A]\n")
    assert listed()[0].used_mib == 0


def test_a_rank_says_why_its_gpu_is_missing(driver, monkeypatch):
    monkeypatch.setattr(device.torch.version, "cuda", CUDA)
    driver(TWO.replace("580.95.05", "535.104.05"))
    with pytest.raises(UserError, match=r"rank 0 .* PyTorch sees 0: the driver 535.104.05 is too old for"):
        device.device_for_rank("cuda")
