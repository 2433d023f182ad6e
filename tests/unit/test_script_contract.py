"""What a script must leave: each part of the contract that it can break, and the sentence that says so."""

import json
import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
from safetensors.torch import load_file, save_file

from helpers.common import program, save_initial, tiny_run, until
from shardlab.errors import Unsupported, UserError
from shardlab.records import metrics
from shardlab.records.script_lines import Lines
from shardlab.runs import script_place, script_rank, signals
from shardlab.runs.attempts import AttemptLog
from shardlab.settings import code_fingerprint, load, resolve
from shardlab.settings.types import Strategy
from shardlab.train import script_report

STEPS = 4


def line(step, loss=1.0, **values):
    return json.dumps({"step": step, "loss": loss, **values}) + "\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step 0: 1.0\n", "line 1 of .* is not a JSON object: 'step 0: 1.0'"),
        (line(0) + line(2), "line 2 of .* is of step 2, but step 1 comes next: step 1 is missing"),
        ("".join(map(line, range(STEPS + 1))), "line 5 of .* is of step 4, but this training has 4 steps, 0 to 3"),
        ("".join(map(line, range(STEPS - 1))), "ends after step 2, but this training has 4 steps"),
    ],
)
def test_a_line_that_breaks_the_contract_is_named(tmp_path, text, words):
    (tmp_path / "metrics.jsonl").write_text(text)
    lines = Lines(tmp_path / "metrics.jsonl", 0, STEPS)

    def read():
        lines.new(ended=True)
        lines.finish()

    with pytest.raises(UserError, match=words):
        read()


def test_a_line_is_taken_once_it_is_whole_and_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path, 0, STEPS)
    assert lines.new() == []
    path.write_text(line(0, 2) + "\n" + line(1, grad_norm=3.0)[:5])
    assert lines.new() == [(0, 2.0, None)]
    assert lines.new() == []
    more = line(0, 2) + "\n" + line(1, grad_norm=3.0) + line(2, grad_norm=None, own="value")
    path.write_text(more + line(3).rstrip())
    assert lines.new(ended=True) == [(1, 1.0, 3.0), (2, 1.0, None), (3, 1.0, None)]
    lines.finish()
    path.write_text(line(0, 5))
    with pytest.raises(UserError, match="no longer has the lines that it had"):
        lines.new()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("hidden.bias"), "lacks the weight hidden.bias"),
        (lambda weights: weights["output.bias"].fill_(float("nan")), "output.bias has values in .* not finite"),
        (None, "mine.py ended with status 0 without .*model.safetensors"),
    ],
)
def test_weights_that_break_the_contract_are_named(tmp_path, change, words):
    initial, path = tmp_path / "initial.safetensors", tmp_path / "model.safetensors"
    save_initial(tiny_run("mlp"), initial)
    script_report.check_weights(initial, initial, "mine.py")
    if change:
        change(weights := load_file(initial))
        save_file(weights, path)
    with pytest.raises(UserError, match=words):
        script_report.check_weights(path, initial, "mine.py")


WRITES = """
import json, pathlib, signal, sys, time
output = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
def write(*steps, **values):
    with (output / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "loss": 1.0 / (step + 1)} | values) + "\\n")
def request_to_stop():
    (output.parent / ".stop").write_text("SIGUSR1")
def finish():
    (output / "model.safetensors").write_bytes(b"")
"""


@pytest.fixture
def supervised(tiny_data, tmp_path):
    """Function that runs a script of these lines as the only rank of a run, to its end."""
    script_place.clear(tmp_path)

    def run_script(text, attempt=1, **site):
        path = tmp_path / "mine.py"
        path.write_text(WRITES + text)
        run = tiny_run("mlp")
        site = run.site.model_copy(update={"stop_seconds": 2} | site)
        run = run.model_copy(update={"script": str(path), "site": site})
        recorder = script_rank.Recorder(run, tiny_data / "mlp", tmp_path, attempt)
        options = ["--output", str(tmp_path / script_place.OUTPUT)]
        return script_rank.supervise(run, 0, options, tmp_path, recorder)

    return run_script


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('this is wrong')", r"mine.py failed: ValueError: this is wrong"),
        ("write(0, loss=float('nan')); time.sleep(60)", "has the loss nan"),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); write(0); time.sleep(60)",
            r"wrote no line to .* for 1 s \(site key hang_seconds\)",
        ),
    ],
)
def test_a_script_that_fails_or_hangs_is_ended_at_once(supervised, text, words):
    began = time.monotonic()
    with pytest.raises(UserError, match=words):
        supervised(text, hang_seconds=1 if "hang" in words else 60, stop_seconds=1)
    assert time.monotonic() - began < 60, "it was not waited for"


def test_a_request_to_stop_reaches_it_as_sigterm(supervised, tmp_path):
    text = """
def saved(number, frame):
    (output / "checkpoints").mkdir()
    sys.exit(0)
signal.signal(signal.SIGTERM, saved)
write(0, 1)
request_to_stop()
time.sleep(5)
"""
    assert supervised(text) == signals.STOPPED
    last = metrics.read(tmp_path / metrics.NAME)[-1]
    assert (last["kind"], last["step"], last["why"]) == ("stopped", 1, "SIGUSR1")
    assert (tmp_path / script_place.OUTPUT / "checkpoints").is_dir()


def test_an_attempt_keeps_the_steps_that_it_does_not_take_again(supervised, tmp_path):
    with pytest.raises(UserError):
        supervised("write(0, 1, 2)\nsys.exit(1)")
    script_place.clear(tmp_path)
    assert supervised("write(2, 3, loss=7.0)\nfinish()", attempt=2) == 0
    records = metrics.read(tmp_path / metrics.NAME)
    assert [each["loss"] for each in records if each["kind"] == "train"] == [1.0, 0.5, 7.0, 7.0]
    # The first attempt of another training begins with its first step.
    script_place.clear(tmp_path)
    with pytest.raises(UserError, match="must be of step 0"):
        supervised("write(2, 3)", attempt=1)


def resolved(recipe=None, **keys):
    with mock.patch.object(load, "variant_of_strategy", return_value=Strategy(**keys)):
        return resolve.run(load.config({"recipe": recipe or {}}), "mine", "mlp")


OWN = "tests/helpers/own/train.py"


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({"script": OWN, "engine": "deepspeed"}, UserError, "only this project's own training reads engine"),
        ({"script": OWN, "recipe": {"ema_decay": 0.9}}, Unsupported, r"set recipe.ema_decay to null"),
    ],
)
def test_what_does_not_fit_a_script_is_refused(keys, error, words):
    with pytest.raises(error, match=words):
        resolved(**keys)


def test_checkpoints_of_a_script_before_an_edit_are_refused(tmp_path):
    run, folder = resolved(script=OWN), tmp_path / "mine/mlp"
    edited, initial = run.model_copy(update={"sources": {OWN: "0"}}), tmp_path / "initial"
    initial.touch()
    checkpoints = folder / script_place.OUTPUT / script_place.CHECKPOINTS
    checkpoints.mkdir(parents=True)
    (checkpoints / "last.pt").touch()
    with AttemptLog(run, folder, "data", initial).attempt() as attempt:
        attempt.why = "stopped: SIGTERM"
    AttemptLog(run, folder, "data", initial).check_script_checkpoints()
    with pytest.raises(UserError, match=r"was written by .* before it or its settings were changed; undo"):
        AttemptLog(edited, folder, "data", initial).check_script_checkpoints()


def test_a_script_is_its_files_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(code_fingerprint, "ROOT", tmp_path)
    (tmp_path / "mine/parts").mkdir(parents=True)

    def digests(**files):
        for name, text in files.items():
            (tmp_path / f"mine/{name.replace('_', '/', 1)}.py").write_text(text)
        return code_fingerprint.of_script("mine/train.py")

    before = digests(
        train="import one\ndef f():\n    from parts import two\nopen('settings.json')\n",
        one="import numpy\nimport three  # next to it\n",
        parts___init__="",
        parts_two="from . import four\n",
        parts_four="",
        three="X = 1\n",
        other="",
    )
    names = ["one", "parts/__init__", "parts/four", "parts/two", "three", "train"]
    assert list(before) == [f"mine/{name}.py" for name in names]
    (tmp_path / "mine/settings.json").write_text("{}")
    named = digests()
    assert named.keys() - before.keys() == {"mine/settings.json"}
    assert digests(three="X = 1  # a comment\n", other="X = 2\n") == named
    assert digests(three="X = 2\n") != named
    with pytest.raises(UserError, match=r"mine/three.py was edited since this run's settings were resolved"):
        code_fingerprint.check_script_unchanged("mine/train.py", named)


def test_the_process_of_a_script_ends_with_its_rank(tmp_path):
    path = program(tmp_path / "mine.sh", "exec sleep 60")
    run = tiny_run("mlp").model_copy(update={"script": str(path)})
    read, write = os.pipe()
    if (rank := os.fork()) == 0:
        script = script_rank.Script(run, [])
        os.write(write, str(script.process.pid).encode())
        time.sleep(60)
    pid = int(os.read(read, 20))
    os.kill(rank, signal.SIGKILL)
    os.waitpid(rank, 0)
    until(lambda: not Path(f"/proc/{pid}").exists(), 30)
