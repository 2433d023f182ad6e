"""Changed code is changed settings: which files a run's numbers come from."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardlab
from helpers.common import ROOT, save_initial, tiny_run
from shardlab.errors import UserError
from shardlab.settings import code_fingerprint, load, resolve
from shardlab.settings.recipe import OPTIMIZERS, OptimizerClass
from shardlab.train import loop

LOADS = """
import json, os, sys
from pathlib import Path

import shardlab
from shardlab.settings.types import Run
from shardlab.runtime import distributed
from shardlab.train import loop
loaded = lambda: {name for name in sys.modules if name.startswith("shardlab.")}
found = {}
jobs, data, weights, output = json.loads(sys.argv[1]), *map(Path, sys.argv[2:])
before = set()
steps = loop.take_steps

def take_steps(state, options):
    # All code that the settings name is imported, and so compared, before the first step.
    for path in {**state.run.sources, **state.run.model.sources}:
        module = path.removeprefix("scripts/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert module in shardlab.IMPORTED, path
    return steps(state, options)

loop.take_steps = take_steps
for name, settings in jobs.items():
    run = Run.model_validate(settings)
    distributed.start(run.site)
    loop.train(run, data, weights, output / name, {})
    found[name] = sorted(str(Path(sys.modules[module].__file__)) for module in loaded() - before)
    before = loaded()
Path(output / "found.json").write_text(json.dumps(found))
os._exit(0)
"""


NO_NUMBERS = ("errors.py", "files.py", "schema.py", "runs/", "measure/", "records/", "patches/torch_storage.py")
"""Raise and log errors, write files, start and end, measure, record; what measure/ counts resized storages with."""
IN_RUN_JSON = "settings/"
"""Decides what is in run.json, which is compared itself, except for what the training calls (COMPUTES)."""


def test_all_that_a_training_loads_is_among_its_sources_or_decides_no_number(tiny_data, tmp_path):
    runs = {name: tiny_run("vit", name, 1, max_steps=1) for name in ("single", "ddp", "fsdp", "tp", "pp", "zero1")}
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
    found = json.loads((tmp_path / "found.json").read_text())
    for name, paths in found.items():
        run = runs[name]
        named = {*run.sources, *run.model.sources, *run.data.sources}
        files = {
            path.removeprefix(f"{code_fingerprint.PACKAGE}/")
            for path in paths
            if code_fingerprint._tree(Path(path)).body
        }
        others = {file for file in files if f"scripts/shardlab/{file}" not in named}
        assert not {file for file in others if not file.startswith((*NO_NUMBERS, IN_RUN_JSON))}, name
    assert "parallel/zero.py" in files


@pytest.mark.parametrize(
    ("strategy", "workload", "uses", "uses_not"),
    [
        (
            "ddp",
            "mlp",
            ["parallel/ddp.py", "models/mlp.py", "train/step.py", "patches/torch_modules.py"],
            ["parallel/fsdp.py"],
        ),
        (
            "ddp",
            "mlp",
            ["settings/learning_rate.py", "settings/mesh.py", "settings/recipe.py"],
            ["parallel/zero.py"],
        ),
        ("fsdp_tp", "mlp", ["parallel/fsdp.py", "parallel/tensor.py"], ["parallel/ddp.py", "models/cnn.py"]),
        (
            "pp",
            "llama2",
            [
                "parallel/pipeline.py",
                "settings/pipeline_schedules.py",
                "parallel/native.py",
                "patches/torch_modules.py",
                "models/_layers.py",
            ],
            ["parallel/zero.py", "patches/deepspeed_startup.py"],
        ),
        ("zero2", "xsum", ["parallel/zero.py", "runtime/tasks/summarization.py"], ["parallel/native.py"]),
        ("single", "xsum", ["data/package_docstrings.py", "data/_packages.py"], ["data/package_source.py"]),
    ],
)
def test_a_run_names_the_files_that_make_its_numbers(strategy, workload, uses, uses_not):
    run = tiny_run(workload, strategy)
    named = {*run.sources, *run.model.sources, *run.data.sources}
    assert {f"scripts/shardlab/{name}" for name in uses} <= named
    assert not {f"scripts/shardlab/{name}" for name in uses_not} & named
    assert not any("/measure/" in name or "/report/" in name or "/launch/" in name for name in named)


def test_a_run_names_the_files_that_split_a_transformers_model():
    run = resolve.run(load.config({}), "cp", "hf_small")
    named = {*run.sources, *run.model.sources}
    uses = ("parallel/library_context.py", "models/_positions.py", "models/_float64.py")
    assert {f"scripts/shardlab/{name}" for name in uses} <= named


def test_an_optimizer_of_the_project_is_among_the_code_of_a_run(monkeypatch):
    run = tiny_run("mlp")
    monkeypatch.setitem(OPTIMIZERS, run.recipe.optimizer.name, OptimizerClass("shardlab.runtime.trial.Lion"))
    assert "scripts/shardlab/runtime/trial.py" in code_fingerprint.training_sources(run)


def test_comments_docstrings_and_layout_do_not_count(tmp_path, monkeypatch):
    def digest(name, text):
        (tmp_path / name).write_text(text)
        return code_fingerprint._digest(tmp_path / name)

    code = digest("a.py", '"""Doc."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1\n')
    assert digest("b.py", "# comment\ndef f(x):\n\n    return (x +\n            1)\n") == code
    assert digest("c.py", "def f(x):\n    return x + 2\n") != code


EDITS = """
import sys
from pathlib import Path

from shardlab.errors import UserError
from shardlab.settings import code_fingerprint
from shardlab.settings.recipe import OPTIMIZERS, OptimizerClass

def refused(sources):
    try:
        code_fingerprint.check_imported(sources)
    except UserError as error:
        return "edited" in str(error)
    return False

name, path = "scripts/shardlab/data/order.py", code_fingerprint.PACKAGE / "data/order.py"
before, original = {name: code_fingerprint._digest(path)}, path.read_text()
assert not refused(before), "nothing is imported"
path.write_text(original.replace("self.seed, epoch", "self.seed, 0") if sys.argv[1:] else original)
edited = path.read_text()
import shardlab.data.order
path.write_text(original + "EDITED = True")
assert refused(before) == (edited != original), "what counts is what was imported"
assert refused({name: code_fingerprint._digest_of(path.read_bytes())})
assert not refused({name: code_fingerprint._digest_of(edited.encode())})
"""


@pytest.mark.parametrize("words", [(), ("edit",)])
def test_the_code_that_a_process_imported_is_compared(tmp_path, words):
    """Not what is in the files by then; also if Python's cache of compiled files has it."""
    package = tmp_path / "scripts/shardlab"
    shutil.copytree(ROOT / "scripts/shardlab", package, ignore=shutil.ignore_patterns("__pycache__"))
    original = (package / "data/order.py").read_text()
    assert "self.seed, epoch" in original
    for _ in range(2):
        (package / "data/order.py").write_text(original)
        call = [sys.executable, "-c", EDITS, *words]
        subprocess.run(call, env={"PYTHONPATH": str(tmp_path / "scripts")}, check=True)


def test_a_file_that_is_edited_while_it_is_imported_is_no_known_code(monkeypatch):
    monkeypatch.setitem(shardlab.IMPORTED, "shardlab.data.order", b"")
    with pytest.raises(UserError, match=r"data/order\.py was edited"):
        code_fingerprint.check_imported({"scripts/shardlab/data/order.py": "0"})


@pytest.mark.parametrize("of", ["run", "model"])
def test_a_training_of_edited_code_ends_before_its_first_step(tiny_data, tmp_path, of):
    run = tiny_run("mlp")
    save_initial(run, tmp_path / "initial")
    path = {"run": "train/loop.py", "model": "models/mlp.py"}[of]
    edited = {f"scripts/shardlab/{path}": "0"}
    run = run.model_copy(
        update={"sources": edited} if of == "run" else {"model": run.model.model_copy(update={"sources": edited})}
    )
    with pytest.raises(UserError, match=rf"{path} was edited since this run's settings were resolved"):
        loop.train(run, tiny_data / "mlp", tmp_path / "initial", tmp_path / "run", {})
    assert not (tmp_path / "run/metrics.jsonl").exists()
