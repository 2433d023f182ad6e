"""Changed code is changed settings: which code a run's numbers come from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.common import ROOT, save_initial, tiny_run
from shardlab.errors import UserError
from shardlab.settings import code_fingerprint, load, resolve
from shardlab.train import loop

LOADS = """
import json, os, sys
from pathlib import Path

from shardlab.settings.types import Run
from shardlab.runtime import distributed
from shardlab.train import loop
jobs, data, weights, output = json.loads(sys.argv[1]), *map(Path, sys.argv[2:])
for name, settings in jobs.items():
    run = Run.model_validate(settings)
    distributed.start(run.site)
    loop.train(run, data, weights, output / name, {})
loaded = [module.__file__ for name, module in sys.modules.items() if name.startswith("shardlab.")]
(output / "loaded.json").write_text(json.dumps(loaded))
os._exit(0)
"""
NO_NUMBERS = ("errors.py", "files.py", "schema.py", "runs/", "measure/", "records/", "patches/__init__.py")
"""Raise and log errors, write files, start and end, measure, record."""
IN_RUN_JSON = "settings/"
"""Decides what is in run.json, which is compared itself, except for what the training calls (COMPUTES)."""


def test_all_that_a_training_loads_has_a_digest_or_decides_no_number(tiny_data, tmp_path):
    runs = {name: tiny_run("vit", name, 1, max_steps=1) for name in ("single", "fsdp", "tp", "pp", "zero1")}
    save_initial(runs["single"], tmp_path / "weights")
    jobs = json.dumps({name: run.model_dump() for name, run in runs.items()})
    world = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LOADS, jobs, str(tiny_data / "vit"), str(tmp_path / "weights"), str(tmp_path)],
        env={"PATH": "", "PYTHONPATH": str(ROOT / "scripts"), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", **world},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rooms = code_fingerprint.ROOMS.items()
    with_digest = {
        path for room, files in rooms for each in files for path in (code_fingerprint.PACKAGE / room).glob(each)
    }
    loaded = {Path(path) for path in json.loads((tmp_path / "loaded.json").read_text())}
    assert code_fingerprint.PACKAGE / "parallel/zero.py" in loaded
    names = {str(path.relative_to(code_fingerprint.PACKAGE)) for path in loaded - with_digest}
    assert not {name for name in names if not name.startswith((*NO_NUMBERS, IN_RUN_JSON))}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that can be edited, whose files are empty but for those that are edited."""
    copied = tmp_path / "scripts/shardlab"
    for path in (ROOT / "scripts/shardlab").rglob("*.py"):
        name = str(path.relative_to(ROOT / "scripts/shardlab"))
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        (copied / name).write_text(path.read_text() if name in EDITS else "")
    monkeypatch.setattr(code_fingerprint, "PACKAGE", copied)
    forget()
    yield copied
    forget()


def forget():
    for cached in (code_fingerprint._room, code_fingerprint._digest):
        cached.cache_clear()


def sources():
    run = resolve.run(load.config({}), "fsdp", "mlp")
    return run.sources, resolve.initialization(run).sources, run.model.sources, run.data.sources


EDITS = {
    "train/loop.py": [True, True, False, False],
    "settings/recipe.py": [True, True, False, False],
    "runtime/tasks/summarization.py": [True, True, False, False],
    "patches/torch_internals.py": [True, True, False, False],
    "parallel/zero.py": [True, False, False, False],
    "data/encoders/regression.py": [True, True, False, True],
    "models/_layers.py": [True, True, False, False],
    "models/mlp.py": [False, False, True, False],
    "data/pairs.py": [False, False, False, True],
    **dict.fromkeys(("models/cnn.py", "data/digits.py", "report/summary.py", "patches/snakemake_core.py"), [False] * 4),
}
"""File: whether an edit changes the training, the initial weights, the model, the data."""


def test_an_edit_changes_the_training_the_initial_weights_the_model_or_the_data(package):
    before = sources()
    for path, changed in EDITS.items():
        text = (package / path).read_text()
        (package / path).write_text(f"{text}\nMORE = 1\n")
        assert sources() == before, "what a process and its forks compare is what was there when it began"
        forget()
        assert [now != then for now, then in zip(sources(), before, strict=True)] == changed, path
        (package / path).write_text(text)
        forget()
        assert sources() == before


def test_a_training_of_edited_code_ends_before_its_first_step(tiny_data, tmp_path):
    run = tiny_run("mlp")
    save_initial(run, tmp_path / "initial")
    edited = {"sources": {"scripts/shardlab/train": "0"}}
    of_model = {"model": run.model.model_copy(update=edited)}
    for changed in (run.model_copy(update=edited), run.model_copy(update=of_model)):
        with pytest.raises(UserError, match="train was edited since this run's settings were resolved"):
            loop.train(changed, tiny_data / "mlp", tmp_path / "initial", tmp_path / "run", {})
    assert not (tmp_path / "run/metrics.jsonl").exists()
