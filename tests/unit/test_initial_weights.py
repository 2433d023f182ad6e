"""Initial weights are those of their report, whose digest is compared first; twins are a rounding apart; large ones."""

import importlib
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from helpers.common import ROOT, save_initial, tiny_run
from shardlab import cli
from shardlab.errors import UserError
from shardlab.files import sha256, write_json
from shardlab.records.reports import InitialReport
from shardlab.settings import load, resolve, run_identity
from shardlab.settings.precisions import PRECISIONS
from shardlab.train import perturbed


def report_of(run, weights):
    identity = run_identity.identity_of(run, "")
    report = InitialReport(identity=identity, weights=sha256(weights), parameters=1, loss=1.0, properties={})
    report.write(weights.with_suffix(".json"))


@pytest.fixture
def said(monkeypatch):
    """Function that returns the error of each call of a program, or ""."""

    def call(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *words])
        try:
            module = importlib.import_module(f"shardlab.cli.{cli.MODULES.get(name, name)}")
            getattr(module, name if name in cli.MODULES else "main")()
        except UserError as error:
            return str(error)
        return ""

    yield lambda *calls: [call(*each) for each in calls]
    if dist.is_initialized():
        dist.destroy_process_group()


def damage(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def test_every_program_that_starts_from_them_refuses_damaged_ones(said, tiny_data, tmp_path):
    run, folder, weights = tiny_run("mlp", max_steps=1, ema_decay=0.9), tmp_path / "run", tmp_path / "mlp.safetensors"
    save_initial(run, weights)
    report_of(run, weights)
    write_json(folder / "run.json", run.model_dump())
    common = [f"--settings={folder / 'run.json'}", f"--data={tiny_data / 'mlp'}"]
    start = [*common, f"--weights={weights}"]
    train = ["train", *start, f"--output={folder}", "--restart"]
    test = [f"--initial={weights.with_suffix('.json')}", f"--output={folder / 'test.json'}"]
    evaluate = ["evaluate", *common, f"--weights={folder / 'model.safetensors'}", *test]
    single = f"--single={folder / 'model.safetensors'}"
    twins = ["noise_floor", *start, single, "--draws=1", f"--output={folder / 'noise_floor.json'}"]
    capture = ["capture", *start, f"--output={folder / 'capture'}"]

    assert said(train, evaluate, twins) == ["", "", ""]
    test, train_report = (json.loads((folder / name).read_text()) for name in ("test.json", "train.json"))
    assert test["ema_loss"] != test["loss"]
    assert train_report["ema_weights"] == sha256(folder / "ema.safetensors")
    damage(folder / "ema.safetensors")
    (changed,) = said(evaluate)
    assert "ema.safetensors has changed since the training wrote it (SHA-256 mismatch); train again" in changed
    damage(weights)
    refused = said(train, twins, capture)
    assert all(f"{weights} is damaged: its SHA-256 is not the one in" in error for error in refused), refused
    report_of(run, weights)
    (other,) = said(evaluate)
    assert "model.safetensors was trained from other initial weights than those there are now; train again" in other


@pytest.mark.parametrize(("precision", "digits"), [("full", 24), ("bf16", 8)])
def test_a_twin_s_weights_are_one_rounding_apart(tmp_path, monkeypatch, precision, digits):
    """2^-24 of each, or 2^-8 in bf16, as one of the normal distribution; another number, another twin."""
    dtype = "float64" if precision == "full" else "float32"
    # float32's distance in float64, which shows it.
    fine = PRECISIONS["float64"]._replace(rounding=PRECISIONS["float32"].rounding)
    monkeypatch.setitem(PRECISIONS, "float64", fine)
    run = tiny_run("llama2", dtype=dtype, precision=precision)
    save_initial(run, tmp_path / "initial")
    moved = []
    for number, name in ((0, "first"), (0, "again"), (1, "second")):
        perturbed.move(run, tmp_path / "initial", number, tmp_path / name)
        moved.append(load_file(tmp_path / name))
    first, again, second = moved
    before = load_file(tmp_path / "initial")
    apart = torch.cat([(first[name] / value - 1)[value != 0].flatten() for name, value in before.items()])
    assert float(apart.std()) == pytest.approx(2**-digits, rel=0.05)
    assert abs(float(apart.mean())) < 2**-digits / 20
    assert all(first[name].equal(again[name]) for name in before)
    assert not all(first[name].equal(second[name]) for name in before)


@pytest.mark.long
def test_initial_weights_are_drawn_with_less_memory_than_they_take(tmp_path):
    run = resolve.run(load.config({}), "fsdp", "llama2")
    args = run.model.args | {"dim": 1024, "hidden": 4096, "layers": 18, "heads": 16, "kv_heads": 16}
    model = run.model.model_copy(update={"args": args, "segments": args["layers"] + 2})
    run = run.model_copy(update={"model": model})
    (tmp_path / "run.json").write_text(json.dumps(run.model_dump()))
    # The peak of this program alone: what wait4 says includes the memory of the process that started it.
    program = "from shardlab.cli import init; init.main(); print(open('/proc/self/status').read())"
    command = [sys.executable, "-c", program, "--settings", tmp_path / "run.json", "--output", tmp_path / "weights"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(list(map(str, command)), env=environment, text=True, capture_output=True, check=True)
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) * 1024
    size = (tmp_path / "weights").stat().st_size
    assert size > 1.2e9
    assert peak < size / 2, "PyTorch itself takes some 300 MB"
