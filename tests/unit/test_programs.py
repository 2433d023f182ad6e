"""Single programs: help, dry run, lock, imports."""

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.common import ROOT, tiny_run
from shardlab import cli
from shardlab.files import read_json, write_json
from shardlab.records.plan import Plan
from shardlab.records.reports import TestReport, TrainReport
from shardlab.records.timeline import Timeline
from shardlab.runs.images import ImageReport
from shardlab.settings.config import Config
from shardlab.settings.sites import Site
from shardlab.settings.types import Run, Strategy, Workload

FOLDERS = ("scripts", "benchmarks")
SCRIPTS = sorted(str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).glob("*.py"))
VERBS = [verb for group in cli.VERBS.values() for verb in group]

LOGIN = ["resolve", "download", "prepare", "wheelhouse", "image", "launch", "preflight", "summarize"]
LOGIN += ["report", "watch", "status", "lesson"]


def program(name, *arguments):
    return subprocess.run([sys.executable, ROOT / name, *map(str, arguments)], capture_output=True, text=True)


HELP = """
import io, json, multiprocessing, runpy, sys
from contextlib import redirect_stdout
import altair, pandas, torch._dynamo, transformers  # once for all of them

def explained(name):
    name, *verb = name.split()
    sys.argv, sys.path[0] = [name, *verb, "--help"], name.rpartition("/")[0]
    with redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_path(name, run_name="__main__")
        except BaseException as error:
            return repr(error), said.getvalue()
    return None, said.getvalue()

with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    print(json.dumps(dict(zip(sys.argv[1:], pool.map(explained, sys.argv[1:], chunksize=1)))))
"""
"""Each program in a fork of a process that has imported what is slow to import."""


def test_every_program_explains_itself():
    names = [name for name in SCRIPTS if name != "scripts/check_python.py"]
    names += [f"scripts/shardlab {verb}" for verb in VERBS]
    words = [sys.executable, "-c", HELP, *names]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said.keys() == {*names}
    for name, (error, text) in said.items():
        assert error == "SystemExit(0)", f"{name}: {error}"
        assert "usage:" in text, name
        assert max(map(len, text.splitlines())) <= 80, f"{name}: its docstring is its --help"


@pytest.mark.parametrize(
    ("words", "folder", "said"),
    [
        ("statsu", ".", "error: shardlab: there is no verb 'statsu'; did you mean status? known: "),
        ("status", "docs", f"error: there is no folder {ROOT}/docs/results; name that of the results"),
        ("summarize --results nope", ".", f"error: there is no folder {ROOT}/nope; name that of the results"),
        ("status", "CLONE", f"error: this command is that of {ROOT}, not of this folder; call python scripts/shardlab"),
        ("status --config seed", ".", "error: --config: there is no file seed; write KEY=VALUE, or name"),
        ("status --config {bad", ".", "error: --config is not JSON ("),
        ("launch train --settings nope/run.json", ".", "name the file that a call of Snakemake wrote for this run"),
        ("pack --nodes 0", ".", "--nodes: 0 is too small or no number; write 1 or more"),
        ("watch --every inf", ".", "--every: inf is too small or no number; write 0.1 or more"),
        ("summarize --tolerance nan", ".", "--tolerance: nan is too small or no number; write 0.0 or more"),
    ],
)
def test_a_call_that_cannot_be_is_one_sentence(tmp_path, monkeypatch, capsys, words, folder, said):
    (tmp_path / "scripts/shardlab").mkdir(parents=True)
    monkeypatch.chdir(tmp_path if folder == "CLONE" else ROOT / folder)
    monkeypatch.setattr(sys, "argv", ["shardlab", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    sentence = f"{ended.value.code}\n" if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert said in sentence
    assert sentence.count("error: ") == sentence[sentence.index("error: ") :].count("\n") == 1


@pytest.mark.parametrize("words", [[], ["resolve", "--help"]])
def test_a_reader_that_ends_first_is_no_error(words):
    read, written = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, ROOT / "scripts/shardlab", *words], stdout=written, stderr=subprocess.PIPE)
    os.close(written)
    assert done.stderr == b""


def test_make_help_fits_a_terminal_and_says_how_each_target_s_comment_begins():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "make bench          Measure what docs/evidence.md holds." in said
    assert all(f"make {target} " in said for target in ("run", "test", "soak", "envs", "distclean"))


def test_login_node_programs_have_no_torch():
    code = f"import sys; from shardlab.cli import {', '.join(LOGIN)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts").returncode == 0


@pytest.fixture
def launch(tmp_path, tiny_data):
    """Arguments of `shardlab launch` for a tiny run, and its folder."""

    def arguments(strategy):
        run = tiny_run("mlp", strategy)
        folder = tmp_path / strategy / "mlp"
        write_json(folder / "run.json", run.model_dump())
        paths = {"settings": folder / "run.json", "data": tiny_data / "mlp", "weights": tmp_path / "init.safetensors"}
        options = [f"--{key}={path}" for key, path in paths.items()]
        return ["train", *options, f"--output={folder}", f"--done={folder}.done"], folder

    return arguments


def test_a_missing_gpu_ends_with_an_error(launch):
    arguments, folder = launch("single")
    run = read_json(folder / "run.json", "", "")
    write_json(folder / "run.json", run | {"site": run["site"] | {"device": "cuda"}})
    options = [option for option in arguments[1:] if not option.startswith("--done")]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/shardlab", "train", *options],
        env=os.environ | {"LOCAL_RANK": "99"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "error: rank 99 of this node needs its own GPU" in done.stderr
    assert not (folder / "model.safetensors").exists()


def test_dry_run_prints_the_line_and_does_nothing(launch):
    arguments, folder = launch("fsdp_tp")
    done = program("scripts/shardlab", "launch", *arguments, "--dry-run")
    assert done.returncode == 0
    assert "--nproc-per-node=4 --signals" in done.stdout
    assert "HF_HUB_OFFLINE=1" in done.stdout
    assert "export MKL_NUM_THREADS=1" in done.stdout
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_one_rank_needs_no_torchrun(launch):
    assert "fork_torchrun" not in program("scripts/shardlab", "launch", *launch("single")[0], "--dry-run").stdout


def test_without_imports_ranks_are_processes_that_end_with_torchrun(tmp_path):
    """As on a GPU: torchrun queries CUDA before it starts ranks, and CUDA does not survive a fork."""
    (tmp_path / "rank.py").write_text(
        "import multiprocessing, os, signal, sys, time\n"
        "from shardlab.runs import signals\n"
        "signals.die_with_parent(signal.SIGKILL, int(os.environ[signals.TORCHRUN]))\n"
        "os.write(1, f'{multiprocessing.parent_process()} {sys.argv} {os.getpid()}\\n'.encode())\n"
        "time.sleep(60)\n"
    )
    words = [
        sys.executable,
        ROOT / "scripts/shardlab",
        "fork_torchrun",
        "--standalone",
        "--nproc-per-node=2",
        tmp_path / "rank.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    torchrun = subprocess.Popen([*words, "here"], env=environment, stdout=subprocess.PIPE, text=True)
    said = [torchrun.stdout.readline().split() for _ in range(2)]
    assert [line[:3] for line in said] == 2 * [["None", f"['{tmp_path}/rank.py',", "'here']"]]
    torchrun.kill()
    torchrun.wait()
    end = time.monotonic() + 30
    while any(Path(f"/proc/{line[3]}").exists() for line in said):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_folder_is_trained_by_one_launcher_only(launch):
    arguments, folder = launch("single")
    run = read_json(folder / "run.json", "", "")
    write_json(folder / "run.json", run | {"site": run["site"] | {"stop_seconds": 1}})
    with (folder / ".lock").open("w") as lock:
        lock.write("process 1 on here")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = program("scripts/shardlab", "launch", *arguments)
    assert done.returncode == 1
    assert "is being trained by process 1 on here" in done.stderr


def test_missing_weights_fail_in_one_sentence_and_leave_no_done(launch):
    arguments, folder = launch("ddp")
    done = program("scripts/shardlab", "launch", *arguments)
    assert done.returncode != 0
    assert "init.safetensors is missing" in done.stderr + done.stdout
    assert not Path(f"{folder}.done").exists()


def test_a_launcher_that_is_told_to_stop_takes_its_ranks_with_it(launch, tmp_path):
    """Also ranks that ignore the request: after stop_seconds they get a signal."""
    arguments, folder = launch("ddp")
    run = read_json(folder / "run.json", "", "")
    write_json(folder / "run.json", run | {"site": run["site"] | {"stop_seconds": 1}})
    (tmp_path / "init.safetensors").touch()
    # In place of training: ranks that say where they are and stay.
    # Forked while the first ones connect to a thread of torchrun, they could inherit a lock of that.
    stays = "import os, time; assert os.environ['TORCHELASTIC_USE_AGENT_STORE'] == 'False'; "
    stays += "os.write(1, f'here {os.getpid()}\\n'.encode()); time.sleep(600)"
    (tmp_path / "stays.py").write_text(stays)
    program = (
        "import sys; from shardlab.errors import run_program; from shardlab.runs import job; "
        f"job.COMMAND = {str(tmp_path / 'stays.py')!r}; "
    )
    words = [sys.executable, "-c", program + "run_program(lambda: job.main(None))", *map(str, arguments)]
    process = subprocess.Popen(words, cwd=ROOT / "scripts", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = folder / "attempts/001.log"
    while not log.exists() or log.read_text().count("here") < run["ranks_per_node"]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ddp x mlp stopped on request (SIGTERM)" in output
    ranks = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("here")]
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert not Path(f"{folder}.done").exists()
    assert not (folder / ".stop").exists()


def test_a_single_process_that_does_not_stop_in_time_is_killed(launch, tmp_path):
    """One that only notes signals, as in a long step, with the processes that it started."""
    arguments, folder = launch("single")
    run = read_json(folder / "run.json", "", "")
    write_json(folder / "run.json", run | {"site": run["site"] | {"stop_seconds": 2}})
    (tmp_path / "init.safetensors").touch()
    stays = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); "
    (tmp_path / "stays.py").write_text(stays + "print('here', os.getpid(), flush=True); time.sleep(600)")
    program = (
        "import sys; from shardlab.errors import run_program; from shardlab.runs import job; "
        f"job.COMMAND = {str(tmp_path / 'stays.py')!r}; "
    )
    words = [sys.executable, "-c", program + "run_program(lambda: job.main(None))", *map(str, arguments)]
    process = subprocess.Popen(words, cwd=ROOT / "scripts", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = folder / "attempts/001.log"
    while not log.exists() or log.read_text().count("here") < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    told = time.monotonic()
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert 2 < time.monotonic() - told < run["site"]["stop_seconds"]
    assert "single x mlp stopped on request (SIGTERM)" in output
    states = [Path(f"/proc/{number}/stat") for number in re.findall(r"here (\d+)", log.read_text())]
    assert len(states) == 2
    assert not [path for path in states if path.exists() and ") Z " not in path.read_text()]


def test_data_is_verified_also_without_a_done_file(launch, tmp_path):
    arguments, _ = launch("single")
    (tmp_path / "dataset.json").write_text("{}")
    words = [word for word in arguments if not word.startswith(("--done", "--data"))]
    done = program("scripts/shardlab", "launch", *words, f"--data={tmp_path}")
    assert done.returncode == 1
    assert "dataset.json is damaged or was edited" in done.stderr


def test_generated_files_are_up_to_date():
    done = program("scripts/docs.py", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "kind", [Config, Workload, Strategy, Site, Run, Plan, TrainReport, TestReport, Timeline, ImageReport]
)
def test_every_key_of_every_format_is_described(kind):
    schema = kind.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" not in part:
            continue  # a mapping: strategies by name, degrees by mesh axis
        assert part.get("additionalProperties") is False
        for key, value in part["properties"].items():
            assert value.get("description"), key
            assert key in part.get("required", []) or "default" in value or "$ref" in value, key


def test_python_too_old_is_one_sentence(tmp_path):
    old = tmp_path / "python3.9"
    old.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c 'import sys; sys.version_info = (3, 9, 2); "
        'exec(open(sys.argv[1]).read())\' "$@"\n'
    )
    old.chmod(0o755)
    makefile = (ROOT / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(makefile)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    for name in ("envs", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(["make", "run", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error: Shardlab needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()
