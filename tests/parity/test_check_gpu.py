"""The program of `make check-gpu`, on simulated devices: how many ranks each strategy takes, its table, how it ends."""

import importlib
import os
import subprocess
import sys

import pytest
from cases import EXPERTS

from helpers import accelerator
from helpers.common import ROOT
from shardlab.settings import load

PROGRAM = ROOT / "benchmarks/check_gpu.py"


@pytest.fixture
def check_gpu(monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    return importlib.import_module("check_gpu")


def test_the_first_strategy_that_is_not_equal_is_named(check_gpu):
    figures = dict.fromkeys(check_gpu.FIGURES, 1e-16)
    equal = {"workload": "llama2", "strategy": "pp", "arithmetic": "float32", **figures}
    check_gpu.judge([equal, equal | {"test": 9e-5}])
    with pytest.raises(
        check_gpu.UserError, match=r"pp x llama2 in float32 is not equal: its gradient norm has .* 3\.0e-05"
    ):
        check_gpu.judge([equal, equal | {"norm": 3e-5, "test": 1.0}, equal | {"strategy": "tp", "gradient": 1.0}])
    with pytest.raises(check_gpu.UserError, match="PyTorch sees 4 GPUs here, but this needs 8"):
        check_gpu.enough(4, 8)


def test_a_strategy_takes_as_many_ranks_as_fit(check_gpu):
    """Of a machine with eight GPUs; llama2 has four segments and four heads here, two of keys."""
    found = {case.label: case.run for case in check_gpu.cases("llama2", load.own_strategies(), 8)}
    assert {*found} == {*load.own_strategies(), check_gpu.TO_CPU} - {"single", *EXPERTS}
    devices = {name: case.devices_per_node for name, case in found.items()}
    fewer = dict.fromkeys(["mp", "mp_ranks", "pp", "pp_gpipe", "cp_ulysses"], 4)
    fewer |= dict.fromkeys(["pp_interleaved", "pp_zbv", "tp", "tp_sp", "tp_loss"], 2)
    assert devices == dict.fromkeys(found, 8) | fewer | {check_gpu.TO_CPU: 1}


@pytest.mark.long
def test_devices_are_also_compared_with_a_cpu():
    """DeepSpeed knows no simulated devices."""
    words = ["--workloads", "mlp", "--strategies", "mp", "ddp", "fsdp"]
    environment = os.environ | accelerator.environment(SIM_DEVICES="2")
    done = subprocess.run([sys.executable, PROGRAM, *words], text=True, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 x simulated accelerator 0, 1 x simulated accelerator 1" in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| mlp")]
    assert [row[1] for row in rows[::2]] == ["single (GPU to CPU)", "mp", "ddp", "fsdp"]
    assert [row[-1] for row in rows] == ["yes |"] * 8
