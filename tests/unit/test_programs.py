"""Single programs: help, mistakes, a launcher that is told to stop."""

import re
import runpy
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from helpers.common import ROOT, program, tiny_run, until
from shardlab import cli
from shardlab.errors import UserError
from shardlab.files import write_json
from shardlab.runs import job

FOLDERS = ("scripts", "benchmarks")
SCRIPTS = sorted(str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).glob("*.py"))
SCRIPTS.remove("scripts/check_python.py")
VERBS = [*(verb for group in cli.VERBS.values() for verb in group), *cli.STAGES]


@pytest.mark.parametrize("name", [*SCRIPTS, *VERBS])
def test_every_program_explains_itself(monkeypatch, capsys, name):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["shardlab", name, "--help"] if name in VERBS else [name, "--help"])
    monkeypatch.syspath_prepend((ROOT / name).parent)
    start = cli.main if name in VERBS else partial(runpy.run_path, str(ROOT / name), run_name="__main__")
    with pytest.raises(SystemExit) as ended:
        start()
    said = capsys.readouterr().out
    assert ended.value.code in (None, 0)
    assert "usage:" in said
    assert max(map(len, said.splitlines())) <= 80, "its docstring is its --help"


def test_a_call_from_another_clone_s_folder_is_refused(tmp_path, monkeypatch):
    """It would run the code of the clone that is installed."""
    (tmp_path / "scripts/shardlab").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shardlab", "status"])
    with pytest.raises(SystemExit, match=f"error: this command is that of {ROOT}, not of this folder; call python scr"):
        cli.main()


@pytest.fixture
def launch(tmp_path, tiny_data):
    """Function that returns the arguments of `shardlab launch` for a tiny run, and its folder."""

    def arguments(strategy, **site):
        run = tiny_run("mlp", strategy)
        folder = tmp_path / strategy / "mlp"
        run = run.model_copy(update={"site": run.site.model_copy(update=site)})
        write_json(folder / "run.json", run.model_dump())
        paths = {"settings": folder / "run.json", "data": tiny_data / "mlp", "weights": tmp_path / "init.safetensors"}
        options = [f"--{key}={path}" for key, path in paths.items()]
        return ["train", *options, f"--output={folder}", f"--done={folder}.done"], folder

    return arguments


def test_the_data_of_a_training_are_verified_first(launch, monkeypatch, tmp_path):
    arguments, folder = launch("single")
    (tmp_path / "dataset.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["shardlab launch", *arguments, f"--data={tmp_path}"])
    with pytest.raises(UserError, match=r"dataset.json is damaged or was edited"):
        job.main(None)
    assert not Path(f"{folder}.done").exists()


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        # Forked while the first ones connect to a thread of torchrun, ranks could inherit a lock of that.
        ("ddp", "assert os.environ['TORCHELASTIC_USE_AGENT_STORE'] == 'False'"),
        ("single", "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork()"),
    ],
)
def test_a_launcher_that_is_told_to_stop_takes_its_processes_with_it(launch, tmp_path, strategy, code):
    """Also those that ignore the request: ranks get a signal after stop_seconds; one process that only notes signals,
    as in a long step, is killed with those that it started.
    """
    arguments, folder = launch(strategy, stop_seconds=1)
    (tmp_path / "init.safetensors").touch()
    says = "os.write(1, f'here {os.getpid()}\\n'.encode())"
    (tmp_path / "stays.py").write_text(f"import os, signal, time; {code}; {says}; time.sleep(600)")
    words = "from shardlab.errors import run_program; from shardlab.runs import job; "
    words += f"job.COMMAND = {str(tmp_path / 'stays.py')!r}; run_program(lambda: job.main(None))"
    command = [sys.executable, "-c", words, *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT / "scripts", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    log = folder / "attempts/001.log"
    until(lambda: log.read_text().count("here") == 2, alive=lambda: process.poll() is None)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{strategy} x mlp stopped on request (SIGTERM)" in output
    for number in re.findall(r"here (\d+)", log.read_text()):
        path = Path(f"/proc/{number}/stat")
        assert not path.exists() or ") Z " in path.read_text()
    assert not Path(f"{folder}.done").exists()
    assert not (folder / ".stop").exists()


def test_python_too_old_is_one_sentence(tmp_path):
    pretends = "'import sys; sys.version_info = (3, 9, 2); exec(open(sys.argv[1]).read())'"
    old = program(tmp_path / "python3.9", f'exec {shlex.quote(sys.executable)} -c {pretends} "$@"')
    for name in ("Makefile", "scripts", "envs", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(["make", "run", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error: Shardlab needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()
