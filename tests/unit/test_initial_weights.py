"""Initial weights are those of their report: whatever starts from them compares the digests first."""

import importlib
import json
import sys

import pytest
import torch.distributed as dist

from helpers.common import save_initial, tiny_run
from shardlab import cli
from shardlab.errors import UserError
from shardlab.files import sha256, write_json
from shardlab.records.reports import InitialReport
from shardlab.settings import run_identity


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
