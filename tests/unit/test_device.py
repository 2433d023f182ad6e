"""Behavior on GPUs, as far as a machine without one can test it (tests/accelerator, docs/cluster.md)."""

import ast
import math
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import accelerator
from helpers.common import ROOT, tiny_run
from shardlab.errors import UserError
from shardlab.models import weights
from shardlab.parallel import parallelize
from shardlab.runtime import device, distributed
from shardlab.runtime.batches import Step
from shardlab.settings.sites import SiteRuntime
from shardlab.train import loop
from shardlab.train.step import PendingStep

OF_CUDA = ROOT / "scripts/shardlab/runtime/device.py"


def simulated(*command, **values):
    """Run a command where PyTorch has simulated devices."""
    environment = accelerator.environment(**values)
    paths = [environment["PYTHONPATH"], str(ROOT / "scripts"), str(ROOT / "tests")]
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment, "PYTHONPATH": ":".join(paths)},
        text=True,
        capture_output=True,
    )


@pytest.mark.long
def test_what_the_project_does_with_devices_on_simulated_ones():
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null"]
    done = simulated("-m", "pytest", *options, ROOT / "tests/accelerator/uses.py")
    assert done.returncode == 0, done.stdout[-3000:]


def test_what_only_cuda_has_is_in_one_file():
    """And no code uses the current device, which in a new thread is device 0."""
    for path in (ROOT / "scripts").rglob("*.py"):
        text = path.read_text()
        tree = ast.parse(text if "torch" in text else "")
        names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        of_cuda = [name for name in names if name.startswith(("torch.cuda", "torch.backends"))]
        assert path == OF_CUDA or not of_cuda, path
        assert not [name for name in names if name.endswith(("current_device_index", "current_device"))], path


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


@pytest.mark.parametrize("phrase", distributed.PEER_FAILURES)
def test_an_error_of_gloo_or_nccl_about_another_rank_is_known(phrase):
    assert distributed.is_peer_failure(RuntimeError(f"... {phrase}: ..."))
    assert not distributed.is_peer_failure(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_float32_is_float32():
    """PyTorch lets convolutions round to TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    distributed.start(SiteRuntime())
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_the_same_bits_are_asked_for_before_anything_else(tmp_path):
    run = tiny_run("mlp", deterministic=True)
    requested = mock.Mock(**{"world.side_effect": InterruptedError})
    with mock.patch.multiple(loop, device=requested, distributed=requested), pytest.raises(InterruptedError):
        loop.train(run, tmp_path, tmp_path, tmp_path, {})
    assert [call[0] for call in requested.method_calls] == ["deterministic", "world"]
    with mock.patch.dict(os.environ):
        try:
            device.deterministic()
            assert torch.are_deterministic_algorithms_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        finally:
            torch.use_deterministic_algorithms(False)


def test_a_selective_recomputation_computes_no_product_again():
    """Counted on shapes: a layer has one product forward and two backward."""
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False))
        x = torch.empty(5, 8, requires_grad=True)
    parallelize.recompute(model, ["0"], "selective")
    with Counted("mm") as products:
        model(x).sum().backward()
    assert products.count == 3


@pytest.mark.long
def test_deepspeed_takes_no_gpu_where_the_site_says_cpu():
    code = "import torch; torch.cuda.is_available = lambda: True; torch.cuda.device_count = lambda: 1; "
    code += "from shardlab.parallel import zero; "
    code += "from deepspeed.accelerator import get_accelerator; print(get_accelerator().device_name())"
    assert simulated("-c", code).stdout.split()[-1:] == ["cpu"]


class Counted(TorchDispatchMode):
    """Count of an operator's calls."""

    def __init__(self, name):
        super().__init__()
        self.name, self.count = name, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ == self.name
        return func(*args, **(kwargs or {}))


def test_buffers_of_offloaded_weights_are_on_the_device():
    model = torch.nn.BatchNorm1d(3)
    for name, parameter in [*model.named_parameters()]:
        setattr(model, name, torch.nn.Parameter(parameter.to("meta")))
    weights.allocate(model, torch.device("cpu"), torch.device("meta"))
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert {buffer.device.type for buffer in model.buffers()} == {"meta"}
