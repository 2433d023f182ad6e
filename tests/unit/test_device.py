"""Behavior on GPUs, as far as a machine without one can test it (tests/accelerator, docs/cluster.md)."""

import math
import os
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from shardlab.errors import UserError
from shardlab.parallel import parallelize
from shardlab.runtime import device, distributed
from shardlab.runtime.batches import Step
from shardlab.settings.sites import SiteRuntime
from shardlab.train.step import PendingStep


def test_a_step_that_fp16_s_loss_scaler_left_out_is_counted_and_no_error():
    def metrics(loss, scaled):
        values = torch.tensor([loss, 0.0, 0.0, math.inf])
        return PendingStep(Step(3, 0, 2, 2, 0.1, [], 0, validates=False), values, scaled=scaled).metrics()

    assert not metrics(6.0, scaled=True).finite
    with pytest.raises(UserError, match="gradient norm of step 3 is inf"):
        metrics(6.0, scaled=False)
    with pytest.raises(UserError, match="the loss of step 3 is nan"):
        metrics(math.nan, scaled=True)


def test_float32_is_float32_and_the_same_bits_are_asked_for():
    """PyTorch lets convolutions round to TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    distributed.start(SiteRuntime())
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    with mock.patch.dict(os.environ):
        device.deterministic()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
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
