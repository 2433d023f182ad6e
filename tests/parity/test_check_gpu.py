"""The program of `make check-gpu`, on CPUs and on simulated devices: all cases, its tables, and how it ends."""

import importlib
import os
import subprocess
import sys

import pandas as pd
import pytest
from cases import EXPERTS

from helpers import accelerator
from helpers.common import ROOT
from shardlab.settings import load

FIGURES = ["gradient", "loss", "norm", "test"]
PROGRAM = ROOT / "benchmarks/check_gpu.py"


@pytest.fixture
def check_gpu(monkeypatch):
    """The program as a module."""
    monkeypatch.syspath_prepend(PROGRAM.parent)
    return importlib.import_module("check_gpu")


def run(*words, **environment):
    """Run the program; returns it with its output."""
    return subprocess.run(
        [sys.executable, PROGRAM, *map(str, words)], text=True, capture_output=True, env=os.environ | environment
    )


def markdown(text):
    """The table in a program's output, and the line above it."""
    above, _, *lines = text.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    return above, pd.DataFrame(cells[2:], columns=cells[0])


def made(**values):
    """A row of the table, equal but for the values that are given."""
    place = {"workload": "llama2", "strategy": "pp", "ranks": 2, "devices": 2, "arithmetic": "float32"}
    return place | dict.fromkeys(FIGURES, 1e-16) | values


def test_the_first_strategy_that_is_not_equal_is_named(check_gpu):
    equal = [made(), made(test=9e-5), made(arithmetic="float64"), made(arithmetic="bf16", gradient=0.1)]
    check_gpu.judge(equal)
    later = made(strategy="tp", gradient=1.0)
    with pytest.raises(check_gpu.UserError) as raised:
        check_gpu.judge([*equal, made(norm=3e-5, test=1.0), later])
    assert str(raised.value) == (
        "pp x llama2 in float32 is not equal: its gradient norm has a relative difference of 3.0e-05, and the bound is "
        "5e-06."
    )


def test_a_strategy_takes_as_many_ranks_as_fit(check_gpu):
    """Of a machine with eight GPUs; llama2 has four segments and four heads here, two of keys."""
    found = {case.label: case.run for case in check_gpu.cases("llama2", load.own_strategies(), "cuda", 8)}
    assert {*found} == {*load.own_strategies(), check_gpu.TO_CPU} - {"single", *EXPERTS}
    assert {*EXPERTS} < {case.label for case in check_gpu.cases("moe", load.own_strategies(), "cuda", 8)}
    devices = {name: case.devices_per_node for name, case in found.items()}
    fewer = dict.fromkeys(["mp", "mp_ranks", "pp", "pp_gpipe", "cp_ulysses"], 4)
    fewer |= dict.fromkeys(["pp_interleaved", "pp_zbv", "tp", "tp_sp", "tp_loss"], 2)
    assert devices == dict.fromkeys(found, 8) | fewer | {check_gpu.TO_CPU: 1}


def test_too_few_gpus_are_one_sentence(check_gpu):
    assert [check_gpu.enough(found, None) for found in (1, 5, 16)] == [1, 5, 8]
    assert check_gpu.enough(4, 2) == 2
    for found, requested, needed in ((0, None, 1), (4, 8, 8)):
        with pytest.raises(check_gpu.UserError, match=f"PyTorch sees {found} GPUs here, but this needs {needed};"):
            check_gpu.enough(found, requested)


@pytest.mark.long
def test_devices_are_also_compared_with_a_cpu(tmp_path):
    """On simulated devices; DeepSpeed knows none of those."""
    words = ["--workloads", "mlp", "--strategies", "dp", "mp", "ddp", "fsdp", "--only", "equal", "--output", tmp_path]
    done = run(*words, **accelerator.environment(SIM_DEVICES="2"))
    assert done.returncode == 0, done.stderr[-3000:]
    above, table = markdown(done.stdout)
    assert "1 x simulated accelerator 0, 1 x simulated accelerator 1" in above
    assert [*table.strategy.unique()] == ["single (GPU to CPU)", "dp", "mp", "ddp", "fsdp"]
    assert [*table.equal] == ["yes", "yes", "not judged"] * 5
    written = pd.read_csv(tmp_path / "check_gpu_equality.csv")
    assert [*written.strategy] == [*table.strategy]
    assert written[FIGURES].notna().all().all()
