"""Checkpoints on disk: complete or absent, and damage to a file is always detected."""

import filecmp
import shutil
import subprocess
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.common import save_initial, tiny_run
from shardlab.errors import UserError
from shardlab.files import sha256
from shardlab.records import manifest
from shardlab.records.metrics import read
from shardlab.records.reports import TrainReport
from shardlab.runtime import distributed, tasks
from shardlab.runtime.distributed import World
from shardlab.train import checkpoint, loop, resume
from shardlab.train.checkpoint import BEST, Checkpointer

RECIPE = {"max_steps": 6, "checkpoint_interval_steps": 2, "keep_last_checkpoints": 3, "keep_best": True}


@pytest.fixture(scope="module")
def trained(tiny_data, tmp_path_factory):
    """Run, prepared data, initial weights, and the folder of an undisturbed run with three checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    run = tiny_run("mlp", **RECIPE)
    save_initial(run, folder / "initial")
    assert loop.train(run, tiny_data / "mlp", folder / "initial", folder / "whole", {})
    return run, tiny_data / "mlp", folder / "initial", folder / "whole"


def newest(trained, output):
    run, data, initial, _ = trained
    world = distributed.world(run, "cpu")
    start = resume.initial_manifest(run, tasks.load(run.task, data, None, world.device), world, sha256(initial))
    return resume.latest_checkpoint(output, start, world, restart=False)


def changed(run, **recipe):
    return run.model_copy(update={"recipe": run.recipe.model_copy(update=recipe)})


def same(one, other):
    """Whether two checkpoints have the same files with the same content."""
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    return not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(how=st.sampled_from(["cut", "flip", "swap", "unlink", "empty"]), where=st.floats(0, 0.999), pick=st.integers(0))
def test_no_damage_to_a_file_goes_unseen(trained, tmp_path, how, where, pick):
    *_, whole = trained
    output = tmp_path / "damaged"
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(whole / "checkpoints", output / "checkpoints")
    folder = manifest.place(output, 6)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[pick % len(files)]
    content = bytearray(path.read_bytes())
    place = int(where * len(content))
    if how == "unlink":
        path.unlink()
    elif how == "swap":
        shutil.copyfile(manifest.place(output, 4) / path.relative_to(folder), path)
    elif how == "flip":
        content[place] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: place if how == "cut" else 0])
    chosen = newest(trained, output)
    assert same(chosen, manifest.place(whole, manifest.step_of(chosen)))
    assert chosen == manifest.place(output, 4) or same(folder, manifest.place(whole, 6))


def test_a_damaged_one_is_skipped_with_a_sentence_and_the_end_is_the_same(trained, tmp_path, capsys):
    run, data, initial, whole = trained
    output = tmp_path / "again"
    shutil.copytree(whole, output)
    newer, before = manifest.place(output, 6), manifest.place(output, 4)
    next((newer / "shards").iterdir()).write_bytes(b"damaged")
    (before / "manifest.json").write_bytes(b"damaged")
    assert loop.train(run, data, initial, output, {})
    seen = capsys.readouterr().out
    assert f"warning: skipping a checkpoint: {newer}/shards/" in seen
    assert f"warning: skipping a checkpoint: {before}/manifest.json is damaged" in seen
    for weights in ("model.safetensors", BEST):
        assert filecmp.cmp(output / weights, whole / weights, shallow=False)
    records = read(output / "metrics.jsonl")
    assert [record["step"] for record in records if record["kind"] == "train"] == [*range(6)], "every step once"
    assert [record["step"] for record in records if record["kind"] == "attempt"] == [0, 2]


@pytest.mark.parametrize(("every", "requested", "stopped"), [(2, 3, 4), (9, 1, 3)])
def test_a_stop_is_obeyed_and_loses_no_validation(trained, tmp_path, monkeypatch, every, requested, stopped):
    """Also where a checkpoint is due ``every`` few steps, and at the end of an epoch, which is after 3 steps."""
    run, data, initial, whole = trained
    run = changed(run, checkpoint_interval_steps=every)
    answers = iter([None] * requested + ["SIGTERM"] * 9)
    monkeypatch.setattr(loop.signals, "Requests", lambda _: SimpleNamespace(requested=lambda: next(answers)))
    assert not loop.train(run, data, initial, tmp_path, {})
    monkeypatch.undo()
    assert newest(trained, tmp_path) == manifest.place(tmp_path, stopped)
    assert loop.train(run, data, initial, tmp_path, {})
    records = [read(folder / "metrics.jsonl") for folder in (tmp_path, whole)]
    ours, theirs = ([(each["step"], each["loss"]) for each in own if each["kind"] == "validation"] for own in records)
    assert ours == theirs
    assert filecmp.cmp(tmp_path / BEST, whole / BEST, shallow=False)


def test_what_killed_processes_left_of_checkpoints_is_removed_with_the_next_one(trained, tmp_path):
    """Before, while and after its manifest was written, and of one that was being removed."""
    *_, whole = trained
    new, complete = (manifest.place(tmp_path, step).with_name(f".step-0000000{step}.new") for step in (4, 5))
    for step, place in ((2, manifest.place(tmp_path, 2)), (6, manifest.place(tmp_path, 6)), (2, complete)):
        shutil.copytree(manifest.place(whole, step), place)
    (new / "shards").mkdir(parents=True)
    manifest.place(tmp_path, 3).mkdir()
    manifest.prune(tmp_path, 2)
    left = [manifest.place(tmp_path, 6), manifest.place(tmp_path, 2)]
    assert manifest.saved(tmp_path) == left
    assert {*(tmp_path / "checkpoints").iterdir()} == {*left}
    manifest.prune(tmp_path, 1)
    assert [*(tmp_path / "checkpoints").iterdir()] == [manifest.place(tmp_path, 6)], "the newest"


def test_another_configuration_is_refused_with_its_key_or_begins_afresh(trained, tmp_path):
    run, data, initial, whole = trained
    shutil.copytree(whole / "checkpoints", tmp_path / "checkpoints")
    other = changed(run, max_steps=5)
    with pytest.raises(UserError, match=r"with a different recipe.max_steps; change it back .* restart=true"):
        loop.train(other, data, initial, tmp_path, {})
    assert len(manifest.saved(tmp_path)) == 3, "nothing was lost"
    assert loop.train(other, data, initial, tmp_path, {}, loop.TrainOptions(restart=True))
    assert [path.name for path in manifest.saved(tmp_path)] == ["step-00000004", "step-00000002"]


def test_a_training_that_goes_on_has_the_best_weights_and_the_counts_of_before(trained, tmp_path):
    """With a best loss that is never reached again, the checkpoint's best weights are kept."""
    run, data, initial, whole = trained
    folder = shutil.copytree(manifest.place(whole, 2), tmp_path / "before")
    found = manifest.read(folder)
    shutil.copyfile(initial, folder / BEST)
    files = found.files | {BEST: manifest.File(bytes=initial.stat().st_size, sha256=sha256(initial))}
    found.model_copy(update={"best": -1.0, "skipped": 7, "files": files}).write(folder / manifest.NAME)
    out = tmp_path / "out"
    out.mkdir()
    (out / BEST).write_bytes(b"of a step that was lost")
    assert loop.train(run, data, initial, out, {}, loop.TrainOptions(resume=folder))
    assert TrainReport.read(out / "train.json", "").skipped_steps == 7
    assert filecmp.cmp(out / BEST, initial, shallow=False)
    last = manifest.read(manifest.place(out, 6))
    assert (last.best, last.skipped, last.files.get(BEST)) == (-1.0, 7, files[BEST])


def test_when_a_checkpoint_is_due(trained, tmp_path, monkeypatch):
    """By the number of steps, and by minutes since the last one."""
    run = changed(trained[0], checkpoint_interval_steps=3, checkpoint_interval_minutes=2.0, keep_best=False)
    clock = mock.Mock(return_value=1000.0)
    monkeypatch.setattr(checkpoint, "time", mock.Mock(monotonic=clock))
    engine = mock.Mock(weights_state=lambda **_: {}, optimizer_state=lambda **_: {})
    checkpointer = Checkpointer(run, None, engine, World(0, 1, torch.device("cpu")), tmp_path, mock.Mock())
    monkeypatch.setattr(checkpointer, "_writer", mock.Mock())
    assert [step for step in range(1, 8) if checkpointer.due_at_step(step)] == [3, 6]
    for later, old in ((100.0, False), (21.0, True)):
        clock.return_value += later
        assert checkpointer.interval_elapsed() is old
    checkpointer.checkpoint(3)
    assert not checkpointer.interval_elapsed(), "the clock begins anew"


def test_a_checkpoint_is_of_the_moment_it_was_asked_for():
    value = torch.ones(3)
    copied = checkpoint._copy(value)
    value.zero_()
    assert copied.tolist() == [1.0] * 3


@pytest.mark.parametrize("fits", [1.6, 2.2], ids=["at the second checkpoint", "at the weights at the end"])
def test_a_full_disk_loses_nothing(tiny_data, tmp_path, fits):
    recipe = {"max_steps": 4, "checkpoint_interval_steps": 2}
    run, data, initial, alone = (tiny_run("llama2", **recipe), tiny_data / "llama2", tmp_path / "i", tmp_path / "a")
    save_initial(run, initial)
    loop.train(run, data, initial, alone, {})
    one = sum(path.stat().st_size for path in manifest.place(alone, 4).rglob("*"))
    output = tmp_path / "small"
    output.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={int(fits * one)}", "tmpfs", output]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount one")
    try:
        with pytest.raises(UserError, match=r"could not be written.*([Mm]ake room|Free space)"):
            loop.train(run, data, initial, output, {})
        last = manifest.step_of(newest((run, data, initial, alone), output))
        assert not [path for path in output.rglob(".*") if path.name.endswith((".new", ".tmp"))]
        subprocess.run(["mount", "-o", f"remount,size={10 * one}", output], check=True)
        assert loop.train(run, data, initial, output, {})
        started = [record for record in read(output / "metrics.jsonl") if record["kind"] == "attempt"]
        assert [record["step"] for record in started] == [0, last]
        assert filecmp.cmp(output / "model.safetensors", alone / "model.safetensors", shallow=False)
    finally:
        subprocess.run(["umount", "--lazy", output], check=True)
