"""Every PyTorch-native strategy on simulated accelerators (tests/accelerator), compared with one CPU: the whole program
with streams, pinned copies, prefetched batches, and checkpoints.

What a GPU would compute wrongly, or wait for within a step, is an error there.
"""

import json
import os
import subprocess
import sys

import pytest
from cases import EXPERTS, RECIPES, STRATEGIES, Case, chosen, parametrized
from group import Group, Server, differences, outside, steps

from helpers import accelerator
from helpers.common import ROOT, TINY, tiny_run
from shardlab.files import write_json
from shardlab.records import metrics
from shardlab.train import evaluation

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]  # the first test waits for the trainings of all
NATIVE = ["single", *(name for name in STRATEGIES if "zero" not in name and name not in (*EXPERTS, "pp_zbv"))]
CASES = [Case(strategy, "llama2", (*RECIPES["accumulated"].items(),)) for strategy in NATIVE]
CASES += [Case("fsdp", workload) for workload in TINY]
CASES += [Case(strategy, "moe") for strategy in EXPERTS]
CASES += [Case("dp", "mnist"), Case("mp", "mnist"), Case("pp_zbv", "llama2")]
HALF = {"max_steps": 2, "checkpoint_interval_steps": 1}


def on_accelerator(run):
    return run.model_copy(update={"site": run.site.model_copy(update={"device": "cuda"})})


@pytest.fixture(scope="module")
def simulated():
    """The process that ranks on simulated devices are forked from."""
    with Server(accelerator.environment(SIM_DEVICES="8")) as server:
        yield server


@pytest.fixture(scope="module")
def folders(request, server, simulated, tmp_path_factory, tiny_data):
    """Two folders: the trainings on CPUs and those on simulated devices."""
    cpu = Group(server, tmp_path_factory.mktemp("cpu"), tiny_data)
    sim = Group(simulated, tmp_path_factory.mktemp("sim"), tiny_data)
    cpu.train((case.reference.name, case.reference.run()) for case in chosen(request))
    sim.train((case.name, on_accelerator(case.run())) for case in chosen(request))
    return cpu.folder, sim.folder


@parametrized(CASES)
def test_equals_a_cpu(folders, case, tiny_data):
    cpu, sim = folders
    found = differences(sim / case.name, cpu / case.reference.name, case.reference.run(), tiny_data / case.workload)
    assert outside(found, native=True) == {}
    # The peak of each rank's own device, without what counting took, is near to what its tensors came to.
    report = json.loads((sim / case.name / "train.json").read_text())
    assert report["devices"] == ["simulated accelerator 0"]
    assert report["peak_memory_kind"] == "CUDA allocated"
    assert len(report["peak_memory_bytes"]) == case.run().world_size
    assert all(peak > 0 for peak in report["peak_memory_bytes"])
    assert all(counted["peak"] > 0 for counted in report["tensor_bytes"])


def test_a_training_that_goes_on_under_another_strategy_equals_a_cpu(server, simulated, tmp_path_factory, tiny_data):
    cpu = Group(server, tmp_path_factory.mktemp("cpu"), tiny_data)
    sim = Group(simulated, tmp_path_factory.mktemp("sim"), tiny_data)
    cpu.train([("single", tiny_run("llama2", dtype="float64"))])
    sim.train([("half", on_accelerator(tiny_run("llama2", "fsdp", dtype="float64", **HALF)))])
    sim.train([("whole", on_accelerator(tiny_run("llama2", "tp_sp", dtype="float64")), "half")])
    for actual, reference_value in zip(steps(sim.folder / "whole"), steps(cpu.folder / "single")[2:], strict=True):
        assert actual["loss"] == pytest.approx(reference_value["loss"], rel=1e-10)
        assert actual["grad_norm"] == pytest.approx(reference_value["grad_norm"], rel=1e-10)


def test_the_programs_from_initial_weights_to_the_test_loss(tmp_path, tiny_data):
    """As `shardlab launch` starts them: torchrun's ranks are processes, and what is measured and monitored is on."""
    cpu = tiny_run("llama2", "fsdp", compile="blocks", compile_backend="aot_eager")
    place = cpu.site.model_copy(update={"device": "cuda", "environment_clear": []})
    folder, data = tmp_path / "fsdp", tiny_data / "llama2"
    write_json(folder / "run.json", cpu.model_copy(update={"site": place}).model_dump())

    def launched(*words):
        command = [sys.executable, ROOT / "scripts/shardlab", "launch", *words, f"--data={data}"]
        command += [f"--settings={folder}/run.json"]
        environment = os.environ | accelerator.environment()
        done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    initial, report = tmp_path / "init.safetensors", tmp_path / "init.json"
    launched("init", f"--output={initial}", f"--report={report}")
    launched("train", f"--weights={initial}", f"--output={folder}", f"--done={folder}.done")
    weights = folder / "model.safetensors"
    launched("evaluate", f"--weights={weights}", f"--initial={report}", f"--output={folder}/test.json")
    found = json.loads((folder / "test.json").read_text())
    assert found["loss"] == pytest.approx(evaluation.evaluate_whole(cpu, data, weights).loss, rel=1e-5)
    assert found["untrained_loss"] == pytest.approx(evaluation.evaluate_whole(cpu, data, initial).loss, rel=1e-5)
    train = json.loads((folder / "train.json").read_text())
    assert train["attention"] is not None
    assert {kind["kind"] for kind in metrics.read(folder / "metrics.jsonl")} >= {"train", "validation"}
