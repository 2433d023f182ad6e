"""Fork server: a process that has imported PyTorch, from which the jobs on this machine's CPU are forked.

Importing PyTorch and what a training needs takes seconds, more than many jobs. Snakemake's process starts the server;
``shardlab launch`` delegates itself to it (``delegate``), and starts as a new Python process if there is none.

Each connection to its Unix socket is one job. The client sends its standard file descriptors, arguments, environment
and folder; the server forks a monitor, which confirms the job and forks it. While the job runs, the client sends
signals for it, one byte each; when it ends, the client receives its status. If a client dies, its job is ended. If the
server dies, jobs continue; if a job's monitor dies, the job and its client end.

Forking is safe only in a process without other threads: a lock that one of them holds would stay locked in the child.
A server whose imports started a thread forks nothing, and jobs start as if it were not there.
"""

import gc
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from shardlab.files import COMMAND, ROOT
from shardlab.runs import forks, signals
from shardlab.runs.forks import FORWARDED

ADDRESS = "SHARDLAB_FORKSERVER"
"""Environment variable with the folder of the server's socket."""
IMPORTS = (
    "torch._dynamo",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.run",
    "shardlab.runs.job",
    "shardlab.train.loop",
    "shardlab.parallel.native",
    "shardlab.parallel.pipeline",
    "shardlab.parallel.zero",
)
"""Modules that most jobs need. A job imports any others itself."""
BEGUN = b"1"


# The client


def delegate(words: list[str]) -> None:
    """Run a verb with these arguments in the server, and exit with its status; return if that is not possible."""
    folder = os.environ.get(ADDRESS)
    if not folder or forks.served is not None:
        return
    try:
        connection = connect(Path(folder))
    except OSError:
        return
    received: list[int] = []
    # A signal's byte must not come before the request's last one.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in FORWARDED}
    began = answer = b""
    try:
        _send_request(connection, words)
        connection.setblocking(False)
        # Not sent by a handler: Python would call it only after a wait that begins just when the signal comes.
        signal.set_wakeup_fd(connection.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        began = _wait_for(connection, 1)
        answer = _wait_for(connection, 4)
    except OSError:
        pass
    signal.set_wakeup_fd(-1)
    if len(answer) == 4:
        _end(*struct.unpack("!i", answer))
    if received:
        _end(-received[0])
    if began or signals.driver_ended():
        sys.exit("error: the process that forked the job died; run the same command again.")
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def connect(folder: Path) -> socket.socket:
    """Connect to the server whose socket is in a folder.

    Raises:
        OSError: there is none.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_short(descriptor))
    except OSError:
        connection.close()
        raise
    finally:
        os.close(descriptor)
    return connection


def _send_request(connection: socket.socket, words: list[str]) -> None:
    request = {"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    text = json.dumps(request | {"code": [str(ROOT), sys.executable]}).encode()
    socket.send_fds(connection, [struct.pack("!i", len(text))], [0, 1, 2])
    connection.sendall(text)


def _wait_for(connection: socket.socket, size: int) -> bytes:
    select.select([connection], [], [])
    return connection.recv(size)


def _end(status: int) -> NoReturn:
    """End this process like the job: with its status, or by its signal (a negative number)."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 255)


# Snakemake's side


def start(project: Path, environment: dict[str, str], cleared: Iterable[str]) -> None:
    """Start a server for the jobs of this process, which ends with it.

    Its modules are imported at the first job, with the given environment variables and without those to be cleared. If
    there can be no server (not on Linux, no sockets on the project's file system), jobs start without one.
    """
    if not sys.platform.startswith("linux"):
        return
    folders, host = project / ".snakemake", os.uname().nodename
    for left in folders.glob(f"forkserver-{host}-*"):  # left by killed processes of this machine
        pid = left.name.rpartition("-")[2]
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = folders / f"forkserver-{host}-{os.getpid()}"
    try:
        os.close(os.pidfd_open(os.getpid()))  # needed by monitors: Linux 5.3
        folder.mkdir(mode=0o700, parents=True)
        with listen(folder) as listener, (folders / "forkserver.log").open("wb") as log:
            inherited = {key: value for key, value in os.environ.items() if key not in {*cleared}}
            words = [sys.executable, str(COMMAND), "forkserver", str(folder.resolve()), str(os.getpid()), *environment]
            subprocess.Popen(
                words,
                stdin=listener.fileno(),
                stdout=log,
                stderr=log,
                env=inherited | environment,
                start_new_session=True,  # Ctrl-C is for the clients, which forward it
            )
    except OSError:
        return
    os.environ[ADDRESS] = str(folder.resolve())


def listen(folder: Path) -> socket.socket:
    """Create a socket in a folder that only its owner can access.

    Raises:
        OSError: the file system has no sockets, or is full.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_short(descriptor))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    return listener


def _short(folder: int) -> str:
    """Return an address of the socket in an open folder: a path may exceed the 108 bytes of an address."""
    return f"/proc/self/fd/{folder}/socket"


# The server


def serve(
    listener: socket.socket,
    prepare: Callable[[], None],
    environment: dict[str, str],
    run_verb: Callable[[list[str]], None],
) -> NoReturn:
    """Fork a monitor per connection, until this process is ended. ``prepare`` imports, at the first connection;
    ``run_verb`` runs a verb of the command.
    """
    forks.run_verb = run_verb
    code: dict[str, int] = {}
    added: dict[str, str] = {}
    while True:
        connection, _ = listener.accept()
        with connection:
            if not code:
                code, before = _code(), dict(os.environ)
                prepare()
                added = {name: value for name, value in os.environ.items() if name not in before}
                gc.collect()
                gc.freeze()  # collections in a fork would otherwise copy all of its memory
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap monitors automatically
            if code != _code():
                print("note: the code was edited since it was imported; not forking.", flush=True)
                continue
            if threads() > 1:
                print(f"error: {threads()} threads after the imports; not forking.", flush=True)
                continue
            if os.fork() == 0:
                listener.close()
                try:
                    _monitor(connection, environment, added)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)


def _code() -> dict[str, int]:
    """Return the modification times (ns) of this project's programs and modules."""
    return {str(path): path.stat().st_mtime_ns for path in (ROOT / "scripts").rglob("*.py")}


def threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _monitor(connection: socket.socket, environment: dict[str, str], added: dict[str, str]) -> None:
    """Fork the job of a connection; forward the client's signals, and the job's status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Signals to all processes are for the job; a monitor ends with its job or its client.
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    signals.name("fork monitor")
    prefix, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    if len(prefix) < 4:
        return
    (length,) = struct.unpack("!i", prefix)
    request = json.loads(connection.recv(length, socket.MSG_WAITALL))
    if request["code"] != [str(ROOT), sys.executable]:
        return  # not what this server imported
    connection.sendall(BEGUN)  # not later: a client whose monitor dies must know that there may be a job
    job = forks.Fork(lambda: _job(connection, request, descriptors, environment, added))
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(job.pid)
    while True:
        if ended in select.select([connection.fileno(), ended], [], [])[0]:
            connection.sendall(struct.pack("!i", job.wait()))
            return
        received = connection.recv(16)
        for code in received or bytes([signal.SIGKILL]):
            job.send_signal(code)
        if not received:
            job.wait()
            return


def _job(
    connection: socket.socket,
    request: dict[str, Any],
    descriptors: list[int],
    environment: dict[str, str],
    added: dict[str, str],
) -> None:
    """Become the program of a request."""
    connection.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    forks.served = environment
    os.environ.clear()
    os.environ.update(added | request["environment"])  # added: set by imports for themselves
    tempfile.tempdir = None  # depends on the environment
    os.chdir(request["folder"])
    forks.run_here(request["words"])
