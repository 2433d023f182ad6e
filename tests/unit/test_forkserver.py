"""The fork server: its jobs behave like separate processes, whichever process is killed."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest

from helpers import servers
from helpers.common import ROOT, tiny_run
from shardlab.cli import forkserver as server_program
from shardlab.files import COMMAND
from shardlab.runs import commands, forks, forkserver

SERVER = """
import os, sys
from pathlib import Path
from shardlab import cli
from shardlab.runs import forkserver
folder = Path(sys.argv[1])
cli.__path__.append(sys.argv[3])
def prepare():
    print("prepared", flush=True)
with forkserver.listen(folder) as listener:
    exec(sys.argv[2])
    forkserver.serve(listener, prepare, {"A": "1"})
"""
VERB = """
import sys
from shardlab import cli
from shardlab.errors import run_verb
cli.__path__.append(sys.argv[1])
run_verb(sys.argv[2:])
"""
"""The command, with verbs of another folder."""
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from shardlab.runs import forks, forkserver, signals

def main():
    forkserver.delegate(["program", *sys.argv[1:]])
    {body}
"""
SERVED = commands.environment(tiny_run("mlp").site)
"""Variables that a server's modules are imported with."""
DEEP = Path("a" * 100, "b" * 100)
"""A path longer than a socket's address can be."""


class Server:
    """A server in a folder, which imports nothing."""

    def __init__(self, folder, code=""):
        self.folder = folder / DEEP
        self.folder.mkdir(parents=True)
        self.said = folder / "server.log"
        with self.said.open("wb") as log:
            words = [sys.executable, "-c", SERVER, str(self.folder), code, str(folder)]
            self.process = subprocess.Popen(words, env=environment(), stdout=log, stderr=log)
        until(lambda: (self.folder / "socket").exists())

    def start(self, program, *words, **more):
        """A client."""
        return subprocess.Popen(
            [sys.executable, program, *words],
            env=environment() | {forkserver.ADDRESS: str(self.folder)} | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def monitors(self):
        return children(self.process.pid)


def environment():
    return os.environ | {"PYTHONPATH": f"{ROOT}/scripts"}


def children(pid):
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until(ready):
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def write(tmp_path):
    """Function that writes a program, and verb, whose ``main`` has this body."""

    def written(body):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip()))
        path.write_text(path.read_text() + "\nif __name__ == '__main__':\n    main()\n")
        return path

    return written


WAITS = """
if forks.served is None: sys.exit("a new process")
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_job_has_the_clients_words_folder_environment_and_files(server, write, tmp_path):
    program = write(
        """
        print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["B"], "A" in os.environ, os.getpid()]))
        print("to stderr", file=sys.stderr)
        return 7
        """
    )
    child = server.start(program, "--x", "y z", B="2")
    said, errors = child.communicate(timeout=60)
    words, folder, value, inherited, pid = json.loads(said)
    assert (words, folder, value, inherited) == (["--x", "y z"], str(Path.cwd()), "2", False)
    assert errors == "to stderr\n"
    assert child.returncode == 7
    assert pid != child.pid
    assert server.said.read_text() == "prepared\n"
    assert server.start(program, B="3").wait(20) == 7
    assert server.said.read_text() == "prepared\n", "once"


STAINED = """
import tempfile
os.environ |= {"LEFT": "the server's", "B": "the server's"}
os.chdir("/")
tempfile.tempdir = "/"
sys.argv = ["the server's"]
def prepare():
    os.environ |= {"SET": "by imports", "C": "by imports"}
"""


def test_a_job_has_nothing_of_the_server_but_what_imports_set_for_themselves(write, tmp_path):
    program = write(
        """
        import tempfile
        variables = [os.environ.get(name) for name in ("A", "B", "C", "SET", "LEFT")]
        print(json.dumps([variables, os.getcwd(), tempfile.gettempdir(), sys.argv[1:], forks.served]))
        """
    )
    server = Server(tmp_path, STAINED)
    try:
        for value in ("1", "2"):
            child = server.start(program, value, B=value, C=value, TMPDIR=str(tmp_path))
            variables, *others = json.loads(child.communicate(timeout=60)[0])
            assert variables == [None, value, value, "by imports", None]
            assert others == [str(Path.cwd()), str(tmp_path), [value], {"A": "1"}]
    finally:
        server.process.kill()
        server.process.wait()


def test_a_module_that_cannot_be_imported_is_the_error_of_the_job_that_needs_it(monkeypatch, capsys):
    monkeypatch.setattr(forkserver, "IMPORTS", ("nothing_of_this_name", "json"))
    monkeypatch.setattr(server_program.code_fingerprint, "digest_all", lambda: None)
    server_program.prepare()
    assert "note: nothing_of_this_name was not imported: ModuleNotFoundError" in capsys.readouterr().out


def test_every_file_of_the_code_is_watched(tmp_path, monkeypatch):
    """Programs, modules and packages in packages: edited, also to an older one, added, removed."""
    names = [tmp_path / "scripts" / name for name in ("docs.py", "shardlab/a.py", "shardlab/package/inner/b.py")]
    for path in names:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(forkserver, "ROOT", tmp_path)
    seen = [forkserver._code()]
    for number, path in enumerate(names):
        os.utime(path, ns=(number, number))
        seen.append(forkserver._code())
    for path in names:
        path.unlink()
        seen.append(forkserver._code())
    assert all(one != other for one, other in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("raise UserError('no such thing.')", 1, "error: no such thing.\n"),
        ("raise FileNotFoundError(2, 'No such file', 'x')", 1, "error: x: No such file\n"),
        ("raise ValueError('a mistake')", 1, "Traceback"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
        ("os._exit(3)", 3, ""),
        ("sys.exit(0)", 0, ""),
    ],
)
def test_a_client_ends_as_its_job_does(server, write, ends, status, said):
    child = server.start(write(f"from shardlab.errors import UserError\n{ends}"))
    _, errors = child.communicate(timeout=60)
    assert child.returncode == status
    assert said in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_job(server, write, number):
    block = f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])"
    child = server.start(write(f"{block}\nprint('here', flush=True)\nsys.exit(40 + signal.sigwait([{int(number)}]))"))
    assert child.stdout.readline() == "here\n"
    child.send_signal(number)
    assert child.wait(20) == 40 + number


SLOW = """
import time
from shardlab.runs import signals
obey = signals.obey
signals.obey = lambda numbers: (time.sleep(0.5), obey(numbers))
"""
LATE = """
import ctypes, operator, signal
from functools import partial
from shardlab.runs import forkserver
wait = forkserver.select.select
def interrupted(*words):
    calls = partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGINT), partial(wait, *words)
    return [*map(operator.call, calls)][-1]  # without a bytecode between them, where Python looks for signals
waits = [interrupted, wait]
forkserver.select.select = lambda *words: waits.pop()(*words)
forkserver.delegate(["program"])
"""


def test_a_signal_that_comes_when_nobody_looks_is_not_lost(write, tmp_path):
    """Between the client's last look for signals and its wait; before the job has its own reaction to them."""
    server = Server(tmp_path, SLOW)
    try:
        write("time.sleep(60)")
        assert server.start("-c", LATE).wait(20) == -signal.SIGINT
    finally:
        server.process.kill()
        server.process.wait()


def test_a_job_ends_with_its_client_and_its_monitor(server, write):
    for kill in ("client", "monitor"):
        child = server.start(write(WAITS))
        job = int(child.stdout.readline())
        os.kill(child.pid if kill == "client" else server.monitors()[0], signal.SIGKILL)
        until(lambda job=job: gone(job))
        assert child.wait(20) != 0
        until(lambda: not server.monitors())


def test_a_job_outlives_the_server_and_the_next_one_is_a_new_process(server, write):
    program = write("time.sleep(1)\nprint(forks.served is None)")
    child = server.start(program)
    until(server.monitors)
    server.process.kill()
    server.process.wait()
    assert child.communicate(timeout=60)[0] == "False\n"
    assert child.returncode == 0
    assert server.start(program).communicate(timeout=60)[0] == "True\n"


@pytest.mark.parametrize("lives", [True, False])
def test_a_job_that_loses_its_monitor_starts_again_while_snakemake_lives(server, write, lives):
    """Whatever the words of Snakemake's command line are."""
    program = write("print(forks.served is None, flush=True)\ntime.sleep(5 if forks.served else 0)")
    code = f"signals.announce_driver()\nsubprocess.Popen([{sys.executable!r}, {str(program)!r}])\ntime.sleep(60)"
    driver = server.start("-c", f"import subprocess, time\nfrom shardlab.runs import signals\n{code}")
    assert driver.stdout.readline() == "False\n"
    if not lives:
        driver.kill()
        driver.wait()
    os.kill(server.monitors()[0], signal.SIGKILL)
    if lives:
        assert driver.stdout.readline() == "True\n"
        assert driver.stderr.readline() == "note: the process that forked the job died; starting the job again.\n"
    else:
        died = "error: the process that forked the job died, and so did Snakemake; run the same command again.\n"
        assert driver.stderr.readline() == died
    driver.kill()
    driver.communicate(timeout=60)


STATE = """
from importlib import import_module
for name in [] if forks.served else forkserver.IMPORTS:
    import_module(name)
import logging, locale, random, threading, warnings
import numpy, torch
state = {
    "forked": forks.served is not None,
    "dtype": str(torch.get_default_dtype()),
    "device": str(torch.get_default_device()),
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()],
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "gradients": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
    "precision": [torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")],
    "environment": dict(os.environ),
    "temporary": __import__("tempfile").gettempdir(),
    "folder": os.getcwd(),
    "umask": os.umask(0o22),
    "signals": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals() if n != signal.SIGINT},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "words": sys.argv[1:],
    "log": [logging.root.level, len(logging.root.handlers), logging.getLogger("shardlab").level],
    "spoiled": hasattr(torch, "spoiled") or "spoiled" in sys.modules or torch.initial_seed() == 7,
    "recursion": sys.getrecursionlimit(),
    "numbers": [locale.setlocale(locale.LC_ALL), numpy.geterr(), numpy.get_printoptions()["precision"]],
    "files": len(os.listdir("/proc/self/fd")),
}
if state["forked"]:
    state["files"] = state["files"] <= 12  # its server's log, sockets, pidfds
else:
    state["files"] = True
Path(sys.argv[1]).write_text(json.dumps(state, default=str))
"""
"""A program that writes what a job could leave behind for the next one."""
SPOILS = """
import logging, numpy, torch
assert forks.served is not None
torch.set_default_dtype(torch.float64), torch.set_default_device("meta"), torch.set_num_threads(3)
torch.manual_seed(7), torch.use_deterministic_algorithms(True), torch.set_grad_enabled(False)
torch.set_float32_matmul_precision("medium"), numpy.seterr(all="ignore"), os.umask(0o77), os.chdir("/")
os.environ["SPOILED"] = "1"
torch.spoiled = sys.modules["spoiled"] = torch
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
logging.basicConfig(level=1), logging.getLogger("shardlab").setLevel(1), sys.setrecursionlimit(5000)
"""


def test_nothing_of_a_job_and_of_the_server_reaches_the_next_job(write, tmp_path, request):
    """It has the state of a new process that imported the same, in the real server."""
    for number in (signal.SIGQUIT, signal.SIGHUP):  # which a job in a shell's background, or under nohup, ignores
        request.addfinalizer(partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))
    address = servers.server(("-c", VERB, str(tmp_path)))
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/scripts", **SERVED}

    def called(body, **environment):
        program, said = write(body), tmp_path / "state.json"
        words = [sys.executable, program, str(said)]
        subprocess.run(words, env=given | environment, cwd=tmp_path, check=True, timeout=120)
        return json.loads(said.read_text()) if said.exists() else None

    new = called(STATE)
    assert not new.pop("forked")
    called(SPOILS, **address, OF_ANOTHER_JOB="1")
    forked = called(STATE, **address)
    assert forked.pop("forked")
    for state in (new, forked):  # not what imports set, which depends on the environment of these tests
        names = (*given, "OF_ANOTHER_JOB", "SPOILED")
        state["environment"] = {name: state["environment"].get(name) for name in names}
    assert forked == new


def test_without_a_server_nothing_is_said(write, tmp_path):
    program = write("print(forks.served is None)")
    for folder in ("", str(tmp_path), str(tmp_path / "nothing")):
        run = subprocess.run(
            [sys.executable, program], env=environment() | {forkserver.ADDRESS: folder}, capture_output=True, text=True
        )
        assert (run.stdout, run.stderr, run.returncode) == ("True\n", "", 0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "2 threads"),
        ("import errno\ndef fork(): raise OSError(errno.ENOMEM, 'no memory')\nos.fork = fork", "no memory"),
        ("forkserver._peer = lambda connection: os.getuid() + 1", ""),
        ("forkserver.ROOT = Path('/elsewhere')", ""),
        ("sys.executable = '/elsewhere/python'", ""),
        ("import itertools; forkserver._code = map(lambda n: {'x': n}, itertools.count()).__next__", "was edited"),
        ("edits = [1]\nforkserver._code = lambda: {'x': len(edits)}\ndef prepare(): edits.append(1)", "was edited"),
    ],
    ids=["threads", "memory", "another user", "other code", "another Python", "edited code", "edited while imported"],
)
def test_where_nothing_can_be_forked_jobs_are_new_processes(write, tmp_path, code, said):
    server = Server(tmp_path, code)
    try:
        child = server.start(write("print(forks.served is None)"))
        assert child.communicate(timeout=60) == ("True\n", "")
        assert said in server.said.read_text()
    finally:
        server.process.kill()
        server.process.wait()


def test_the_socket_is_its_owners_alone(tmp_path, monkeypatch):
    folder = tmp_path / "project" / DEEP
    (folder / ".snakemake").mkdir(parents=True)
    monkeypatch.setenv(forkserver.ADDRESS, "")
    started = []
    monkeypatch.setattr(forkserver.subprocess, "Popen", lambda words, **options: started.append((words, options)))
    old = folder / f".snakemake/forkserver-{os.uname().nodename}-999999999"
    old.mkdir()
    forkserver.start(folder, {"OMP_NUM_THREADS": "1"}, ["PYTHONPATH"])
    place = Path(os.environ[forkserver.ADDRESS])
    assert place == folder / f".snakemake/forkserver-{os.uname().nodename}-{os.getpid()}"
    assert place.stat().st_mode & 0o777 == 0o700
    assert not old.exists(), "of a driver that was killed"
    ((words, options),) = started
    assert words[1:] == [str(COMMAND), "forkserver", str(place), str(os.getpid()), "OMP_NUM_THREADS"]
    assert options["start_new_session"]
    assert "PYTHONPATH" not in options["env"]
    monkeypatch.setattr(forkserver, "_peer", lambda connection: os.getuid() + 1)
    with socket.socket(socket.AF_UNIX) as other:
        monkeypatch.chdir(tmp_path)
        other.bind("socket")
        other.listen()
        with pytest.raises(PermissionError):
            forkserver.connect(tmp_path)


def test_where_there_are_no_sockets_there_is_no_server(tmp_path, monkeypatch):
    monkeypatch.delenv(forkserver.ADDRESS, raising=False)
    monkeypatch.setattr(forkserver, "listen", lambda folder: (_ for _ in ()).throw(OSError(95, "not supported")))
    forkserver.start(tmp_path, {}, [])
    assert forkserver.ADDRESS not in os.environ


def test_modules_imported_with_other_variables_are_not_forked(monkeypatch):
    assert not forks.is_fork({"OMP_NUM_THREADS": "1"}), "this is no fork at all"
    monkeypatch.setattr(forks, "served", {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    assert forks.is_fork({"OMP_NUM_THREADS": "1"})
    assert not forks.is_fork({"OMP_NUM_THREADS": "2"})


def test_a_server_ends_with_its_snakemake(tmp_path):
    """The program itself; it imports nothing before the first job."""
    code = textwrap.dedent(
        f"""
        from pathlib import Path
        from shardlab.runs import forkserver
        forkserver.start(Path({str(tmp_path)!r}), {{}}, [])
        import time; time.sleep(60)
        """
    )
    driver = subprocess.Popen([sys.executable, "-c", code], env=environment())
    until(lambda: children(driver.pid))
    (server,) = children(driver.pid)
    folder = tmp_path / f".snakemake/forkserver-{os.uname().nodename}-{driver.pid}"
    until(lambda: Path(f"/proc/{server}/comm").read_text() == "fork server\n")
    driver.kill()
    driver.wait()
    until(lambda: gone(server) and not folder.exists())
