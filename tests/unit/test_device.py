"""Behavior on GPUs, as far as a machine without one can test it (tests/accelerator, docs/cluster.md)."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.common import ROOT, program
from shardlab.errors import UserError
from shardlab.models import weights
from shardlab.parallel import parallelize
from shardlab.runs.gpus import listed, old_driver, other_torch, why_missing
from shardlab.runtime import device, distributed
from shardlab.runtime.batches import Step
from shardlab.settings.sites import SiteRuntime
from shardlab.train.step import PendingStep


@pytest.mark.parametrize(("near", "given", "bound"), [("0-1,4", {1, 4, 5}, {1, 4}), ("0-2", {2, 5}, None)])
def test_a_rank_runs_on_the_cores_of_its_gpu_where_the_job_has_enough_of_them(
    monkeypatch, tmp_path, near, given, bound
):
    (place := tmp_path / "0000:c1:00.0").mkdir()
    (place / "local_cpulist").write_text(f"{near}\n")
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(device, "PCI", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: gpu)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: given)
    calls = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: calls.append(cores))
    device.bind_to_near_cores(torch.device("cuda", 0))
    assert ({*map(frozenset, calls)} or None) == (bound and {frozenset(bound)})


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_that_fp16_s_loss_scaler_left_out_is_counted_and_no_error(scaled):
    values = torch.tensor([6.0, 0.0, 0.0, math.inf])
    pending = PendingStep(Step(3, 0, 2, 2, 0.1, [], 0, validates=False), values, scaled=scaled)
    if not scaled:
        with pytest.raises(UserError, match="gradient norm of step 3 is inf"):
            pending.metrics()
        return
    assert not pending.metrics().finite
    spoilt = PendingStep(pending.step, torch.tensor([math.nan, 0.0, 0.0, 1.0]), scaled=True)
    with pytest.raises(UserError, match="the loss of step 3 is nan"):
        spoilt.metrics()


def test_float32_is_float32():
    """PyTorch lets convolutions round to TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    distributed.start(SiteRuntime())
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_same_bits_are_asked_for():
    with mock.patch.dict(os.environ):
        try:
            device.deterministic()
            assert torch.are_deterministic_algorithms_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        finally:
            torch.use_deterministic_algorithms(False)


def test_a_selective_recomputation_computes_no_product_again():
    """Counted on shapes: a layer has one product forward and two backward, of two operations each."""
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False))
        x = torch.empty(5, 8, requires_grad=True)
    parallelize.recompute(model, ["0"], "selective")
    with FlopCounterMode(display=False) as counted:
        model(x).sum().backward()
    assert counted.get_total_flops() == 3 * 2 * 5 * 8 * 8


@pytest.mark.long
def test_deepspeed_takes_no_gpu_where_the_site_says_cpu():
    code = "import torch; torch.cuda.is_available = lambda: True; torch.cuda.device_count = lambda: 1; "
    code += "from shardlab.parallel import zero; "
    code += "from deepspeed.accelerator import get_accelerator; print(get_accelerator().device_name())"
    paths = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run([sys.executable, "-c", code], env=paths, text=True, capture_output=True, check=True)
    assert done.stdout.split()[-1:] == ["cpu"]


def test_buffers_of_offloaded_weights_are_on_the_device():
    model = torch.nn.BatchNorm1d(3)
    for name, parameter in [*model.named_parameters()]:
        setattr(model, name, torch.nn.Parameter(parameter.to("meta")))
    weights.allocate(model, torch.device("cpu"), torch.device("meta"))
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert {buffer.device.type for buffer in model.buffers()} == {"meta"}


TWO = "0, NVIDIA H100 80GB HBM3, 580.95.05, Disabled\n1, NVIDIA H100 80GB HBM3, 580.95.05, Disabled\n"


def test_a_driver_is_as_new_as_cuda_needs(tmp_path, monkeypatch):
    """Or it is what is said of missing GPUs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "nvidia-smi", f"printf '%s' '{TWO.replace('580.95.05', '470.82.01')}'")
    seen = old_driver(listed(), "13.0")
    assert "the driver 470.82.01 is too old for this PyTorch's CUDA 13.0, which needs 580 or newer" in seen
    assert why_missing("13.0", None) == seen
    program(tmp_path / "nvidia-smi", f"printf '%s' '{TWO}'")
    assert old_driver(listed(), "13.0") is None
    assert why_missing("13.0", None).startswith("nvidia-smi lists 2 on ")


def test_releases_from_the_oldest_tested_one_to_the_pinned_one_are_taken():
    assert not any(other_torch(release, rocm=False) for release in ("2.13.0+cu130", "2.11.0", "2.12.1a0"))
    for release in ("2.10.1", "2.14.0"):
        sentence = f"PyTorch is {release}, but this project needs 2.11 to 2.13; install 2.13"
        assert other_torch(release, rocm=False) == sentence
