"""The fork server: its jobs behave like separate processes, whichever process is killed, and see Snakemake's end."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.common import ROOT, until
from shardlab.runs import forkserver, signals

SERVER = """
import os, sys
from pathlib import Path
from shardlab import cli
from shardlab.runs import forkserver, signals
folder = Path(sys.argv[1])
cli.__path__.append(sys.argv[3])
def prepare():
    print("prepared", flush=True)
with forkserver.listen(folder) as listener:
    exec(sys.argv[2])
    forkserver.serve(listener, prepare, {"A": "1"}, cli.run_verb)
"""
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from shardlab.runs import forks, forkserver, signals

def main():
    forkserver.delegate(["program", *sys.argv[1:]])
    {body}
"""
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


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def serve(tmp_path):
    """Function that starts a server, which first runs this code."""
    started = []

    def start(code=""):
        started.append(Server(tmp_path, code))
        return started[-1]

    yield start
    for server in started:
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
time.sleep(300)  # longer than a test waits
"""


def test_a_job_has_nothing_of_the_server_but_what_imports_set_for_themselves(serve, write):
    """The variables of its client, and the signals of a new process."""
    stained = 'import signal; os.environ |= {"LEFT": "the server\'s", "B": "the server\'s"}\n'
    stained += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    stained += 'def prepare(): os.environ |= {"SET": "by imports", "C": "by imports"}'
    program = write(
        """
        variables = [os.environ.get(name) for name in ("A", "B", "C", "SET", "LEFT")]
        print(json.dumps([variables, forks.served, sys.argv[1:], signal.getsignal(signal.SIGTERM)]))
        """
    )
    server = serve(stained)
    for value in ("1", "2"):
        child = server.start(program, value, B=value, C=value)
        found = [[None, value, value, "by imports", None], {"A": "1"}, [value], signal.SIG_DFL]
        assert json.loads(child.communicate(timeout=60)[0]) == found


def test_a_client_ends_as_its_job_does_and_hands_signals_on(serve, write):
    server = serve()
    error = "from shardlab.errors import UserError\nraise UserError(f'no such thing: {sys.argv[1:]}.')"
    child = server.start(write(error), "--x")
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, "error: no such thing: ['--x'].\n" in errors) == (1, True)
    child = server.start(write("os.kill(os.getpid(), signal.SIGKILL)"))
    assert child.wait(60) == -signal.SIGKILL
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    child = server.start(write(f"{block}\nprint('here', flush=True)\nsys.exit(signal.sigwait([signal.SIGTERM]))"))
    assert child.stdout.readline() == "here\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == signal.SIGTERM
    assert server.said.read_text() == "prepared\n"


def test_a_job_ends_with_its_client_and_its_monitor_but_outlives_the_server(serve, write):
    server = serve()
    for kill in ("client", "monitor"):
        child = server.start(write(WAITS))
        job = int(child.stdout.readline())
        os.kill(child.pid if kill == "client" else server.monitors()[0], signal.SIGKILL)
        until(lambda job=job: gone(job))
        assert child.wait(20) != 0
        until(lambda: not server.monitors())
    program = write("time.sleep(1)\nprint(forks.served is None)")
    child = server.start(program)
    until(server.monitors)
    server.process.kill()
    server.process.wait()
    assert child.communicate(timeout=60)[0] == "False\n"
    assert server.start(program).communicate(timeout=60)[0] == "True\n", "a new process"


def test_where_nothing_can_be_forked_jobs_are_new_processes(serve, write):
    thread = "threading.Thread(target=time.sleep, args=(60,), daemon=True)"
    server = serve(f"import threading, time; {thread}.start()")
    child = server.start(write("print(forks.served is None)"))
    assert child.communicate(timeout=60) == ("True\n", "")
    assert "2 threads" in server.said.read_text()


def test_a_server_ends_with_its_snakemake(tmp_path):
    """The program itself; it imports nothing before the first job."""
    words = f"import time; from pathlib import Path; from shardlab.runs import forkserver; place = {str(tmp_path)!r}; "
    words += "forkserver.start(Path(place), {}, []); time.sleep(60)"
    driver = subprocess.Popen([sys.executable, "-c", words], env=environment())
    until(lambda: children(driver.pid))
    (server,) = children(driver.pid)
    folder = tmp_path / f".snakemake/forkserver-{os.uname().nodename}-{driver.pid}"
    until(lambda: Path(f"/proc/{server}/comm").read_text() == "fork server\n")
    assert folder.stat().st_mode & 0o777 == 0o700, "its socket is its owner's alone"
    driver.kill()
    driver.wait()
    until(lambda: gone(server) and not folder.exists())


def test_a_job_on_another_machine_does_not_take_its_snakemake_for_ended(monkeypatch):
    monkeypatch.setenv(signals.DRIVER, "")
    signals.announce_driver()
    number, start, boot = os.environ[signals.DRIVER].split()
    for words, ended in (
        (f"{number} {start} {boot}", False),
        (f"999999999 {start} {boot}", True),
        ("1 1 another", None),
    ):
        monkeypatch.setenv(signals.DRIVER, words)
        assert signals.driver_ended() is ended
