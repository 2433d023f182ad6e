"""Changed code is changed settings: which files a run's numbers come from."""

import json
import subprocess
import sys

import pytest

from helpers.common import ROOT, save_initial, tiny_run
from shardlab.settings import sources

LOADS = """
import json, os, sys
from pathlib import Path

from shardlab.settings.types import Run
from shardlab.training import distributed
from shardlab.runs import loop
loaded = lambda: {name for name in sys.modules if name.startswith("shardlab.")}
found = {}
jobs, data, weights, output = json.loads(sys.argv[1]), *map(Path, sys.argv[2:])
before = loaded()
for name, settings in jobs.items():
    run = Run.model_validate(settings)
    distributed.start("cpu")
    loop.train(run, data, weights, output / name, {})
    found[name] = sorted(str(Path(sys.modules[module].__file__)) for module in loaded() - before)
    before = loaded()
Path(output / "found.json").write_text(json.dumps(found))
os._exit(0)
"""


def test_a_run_loads_no_strategy_model_or_task_that_is_not_among_its_sources(tiny_data, tmp_path):
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
    decides = ("models/", "training/tasks/", "strategies/")
    for name, files in found.items():
        mine = runs[name].sources | runs[name].model.sources
        relative = [file.removeprefix(f"{ROOT}/") for file in files]
        assert not {
            file for file in relative if file.removeprefix("scripts/shardlab/").startswith(decides) and file not in mine
        }
    assert "scripts/shardlab/strategies/native.py" in [f.removeprefix(f"{ROOT}/") for f in found["single"]]


@pytest.mark.parametrize(
    ("strategy", "workload", "uses", "uses_not"),
    [
        ("ddp", "mlp", ["strategies/ddp.py", "models/mlp.py", "training/step.py"], ["strategies/fsdp.py"]),
        ("fsdp_tp", "mlp", ["strategies/fsdp.py", "strategies/tensor.py"], ["strategies/ddp.py", "models/cnn.py"]),
        (
            "pp",
            "llama2",
            ["strategies/pipeline.py", "strategies/native.py", "models/_layers.py"],
            ["strategies/zero.py"],
        ),
        ("zero2", "xsum", ["strategies/zero.py", "training/tasks/summarization.py"], ["strategies/native.py"]),
        ("single", "xsum", ["data/package_docstrings.py", "data/_packages.py"], ["data/package_source.py"]),
    ],
)
def test_a_run_names_the_files_that_make_its_numbers(strategy, workload, uses, uses_not):
    run = tiny_run(workload, strategy)
    named = {*run.sources, *run.model.sources, *run.data.sources}
    assert {f"scripts/shardlab/{name}" for name in uses} <= named
    assert not {f"scripts/shardlab/{name}" for name in uses_not} & named
    assert not any("/measure/" in name or "/report/" in name or "/launch/" in name for name in named)


def test_comments_docstrings_and_layout_do_not_count(tmp_path, monkeypatch):
    def digest(name, text):
        (tmp_path / name).write_text(text)
        return sources._digest(tmp_path / name)

    code = digest("a.py", '"""Doc."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1\n')
    assert digest("b.py", "# comment\ndef f(x):\n\n    return (x +\n            1)\n") == code
    assert digest("c.py", "def f(x):\n    return x + 2\n") != code
