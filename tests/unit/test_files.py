"""Files are complete or absent; damaged ones are named."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from helpers.common import save_initial, tiny_run
from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.errors import UserError
from shardlab.files import read_json, write_json
from shardlab.models import export
from shardlab.models import weights as weights_file
from shardlab.records import metrics
from shardlab.train import loop
from shardlab.train.metrics_log import MetricsLog


def test_a_run_that_resumes_keeps_all_earlier_attempts(tmp_path):
    """Also those that began later than this one does, after a checkpoint that is damaged by now. Of the steps, those
    before it.
    """
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for start in (0, 2, 4):
        log.write("attempt", step=start)
    for step in (1, 2):
        log.write("train", step=step, loss=1.0)
    with path.open("a") as file:
        file.write('{"kind": "tra')  # it was killed here
    log = MetricsLog(path, start=2)
    log.write("attempt", step=2)
    lines = [*(("attempt", step) for step in (0, 2, 4)), ("train", 1), ("attempt", 2)]
    assert [(line["kind"], line["step"]) for line in metrics.read(path)] == lines
    MetricsLog(path)
    assert metrics.read(path) == [], "a run that begins anew has no history"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "train.safetensors").unlink(), "train.safetensors is missing"),
        (lambda folder: os.truncate(folder / "test.safetensors", 200), "test.safetensors is damaged"),
        (lambda folder: (folder / "dataset.json").write_text("{}"), "damaged or was edited"),
    ],
)
def test_missing_or_damaged_data_set(tmp_path, tiny_data, damage, words):
    prepared = shutil.copytree(tiny_data / "mlp", tmp_path / "pairs")
    assert store.verify(prepared, tiny_run("mlp").data) == read_json(prepared / "dataset.json", "", "")["fingerprint"]
    damage(prepared)
    with pytest.raises(UserError, match=words) as error:
        store.verify(prepared, tiny_run("mlp").data)
    assert "snakemake" in str(error.value), "the sentence says how to make it again"


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, tiny_data):
    run = tiny_run("mlp", checkpoint_interval_steps=2, max_steps=2)
    save_initial(run, tmp_path / "initial")
    written = []

    def note(what, path):
        written.append(f"{what} {Path(path).relative_to(tmp_path)}".replace(f".{os.getpid()}", ""))

    replace, rename = Path.replace, Path.rename
    monkeypatch.setattr(os, "fsync", lambda number: note("sync", Path(f"/proc/self/fd/{number}").readlink()))
    monkeypatch.setattr(Path, "replace", lambda path, target: note("rename", target) or replace(path, target))
    monkeypatch.setattr(Path, "rename", lambda path, target: note("rename", target) or rename(path, target))
    assert loop.train(run, tiny_data / "mlp", tmp_path / "initial", tmp_path / "run", {})
    new, named = "run/checkpoints/.step-00000002.new", written.index("rename run/checkpoints/step-00000002")
    shard = next(what for what in written if what.endswith(".safetensors") and f"sync {new}/shards/" in what)
    order = [f"rename {new}/manifest.json", shard, f"sync {new}/shards", f"sync {new}"]
    last = [max(i for i, what in enumerate(written[:named]) if what == each) for each in order]
    assert last == sorted(last)
    assert written[named + 1] == "sync run/checkpoints"


def test_files_follow_the_umask_whatever_library_writes_them(tmp_path, tiny_data):
    run = tiny_run("llama2")
    save_initial(run, tmp_path / "initial")
    before = os.umask(0o022)
    try:
        store.write(tmp_path / "data", run.data, *encode(run.data, data_sets.read(run.data, tmp_path)))
        export.write(run, tmp_path / "initial", tmp_path / "data", tmp_path / "exported")
        files = [path for name in ("data", "exported") for path in (tmp_path / name).iterdir()]
        assert {path.name for path in files if path.stat().st_mode & 0o777 != 0o644} == set()
        os.umask(0o027)
        write_json(tmp_path / "report.json", {})
        assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("dtype", [*weights_file.DTYPES], ids=str)
def test_a_file_holds_every_type_at_any_address(dtype, tmp_path):
    torch.manual_seed(0)
    for shape in ((), (0, 3), (3, 3)):
        value = (torch.randn(shape, dtype=dtype if dtype.is_complex else None).abs() * 10).to(dtype)
        written = {"before": torch.tensor(True), "value": value}
        weights_file.save(written.items(), written, tmp_path / "file")
        model = torch.nn.Module()
        model.register_buffer("value", torch.zeros_like(value))
        weights_file.materialize(model, tmp_path / "file", torch.device("cpu"), whole=False)
        assert model.value.dtype == dtype
        assert bytes(model.value.reshape(-1).view(torch.uint8)) == bytes(value.reshape(-1).view(torch.uint8))
