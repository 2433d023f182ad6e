"""A fork server: one process that has imported PyTorch, from which the jobs of this machine's CPU are forked.

Importing PyTorch and what a training needs takes seconds, more than many jobs. Snakemake's process starts the server;
``scripts/launch.py`` hands itself over to it (``delegate``) and starts as a new Python where there is none.

A connection to its Unix socket is one job. The client sends its standard file descriptors, arguments, environment and
folder; the server forks a monitor, and that forks the job and says so. While the job runs the client sends signals for
it, one byte each; its end is answered with the status. A client that goes away ends its job. A server that goes away
ends nothing, and of a job whose monitor goes away the client makes a new process.

Forking is safe only in a process without other threads: a lock that one of them holds would stay locked in the child.
A server whose imports started a thread forks nothing, and jobs start as if it were not there.

Nothing here imports torch.
"""

import gc
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from shardlab.errors import run_program
from shardlab.files import ROOT
from shardlab.launch import processes

ADDRESS = "SHARDLAB_FORKSERVER"
"""Environment variable with the folder of the server's socket."""
PROGRAM = ROOT / "scripts/forkserver.py"
IMPORTS = (
    "torch._dynamo",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.run",
    "shardlab.launch.job",
    "shardlab.runs.loop",
    "shardlab.strategies.native",
    "shardlab.strategies.pipeline",
    "shardlab.strategies.zero",
)
"""Modules that most jobs need. What else one needs it imports itself."""
FORWARDED = (*processes.STOP, signal.SIGQUIT)
"""Signals that the client hands on to its job."""
BEGUN = b"1"
_served: dict[str, str] | None = None
"""In a fork of a server: the environment that its modules were imported with."""


def is_fork(environment: dict[str, str]) -> bool:
    """Whether this process was forked from a server whose modules were imported with these environment variables."""
    return _served is not None and environment.items() <= _served.items()


# The client


def delegate() -> None:
    """Have the server run this program, and leave this process with its status; return where that cannot be."""
    folder = os.environ.get(ADDRESS)
    if not folder or _served is not None:
        return
    try:
        connection = connect(Path(folder))
    except OSError:
        return
    received: list[int] = []

    def forward(number: int, _: Any) -> None:
        received.append(number)
        connection.send(bytes([number]))

    # A signal's byte must not come before the request's last one.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    before = {number: signal.signal(number, forward) for number in FORWARDED}
    began = answer = b""
    try:
        _send_request(connection)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        began = connection.recv(1)
        answer = connection.recv(4, socket.MSG_WAITALL)
    except OSError:
        pass
    if len(answer) == 4:
        _end(*struct.unpack("!i", answer))
    if received:
        _end(-received[0])
    if began and processes.snakemake_of(os.getpid()) is None:
        sys.exit("error: the job was lost with the process that forked it, and its Snakemake has ended.")
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    if began:
        print("note: the job was lost with the process that forked it; starting again.", file=sys.stderr, flush=True)


def connect(folder: Path) -> socket.socket:
    """A connection to the server whose socket is in a folder.

    Raises:
        OSError: there is none, or it is another user's.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(_short(descriptor))
        if _peer(connection) != os.getuid():
            raise PermissionError
    except OSError:
        connection.close()
        raise
    finally:
        os.close(descriptor)
    return connection


def _send_request(connection: socket.socket) -> None:
    request = {"words": sys.argv, "folder": str(Path.cwd()), "environment": dict(os.environ), "root": str(ROOT)}
    text = json.dumps(request | {"client": os.getpid()}).encode()
    socket.send_fds(connection, [struct.pack("!i", len(text))], [0, 1, 2])
    connection.sendall(text)


def _end(status: int) -> NoReturn:
    """Leave this process as the job left its own: with its status, or by its signal (a negative number)."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 255)


# Snakemake's side


def start(project: Path, environment: dict[str, str], cleared: Iterable[str]) -> None:
    """Start a server for the jobs of this process, which ends with it.

    Its modules are imported at the first job, with the given environment variables and without those to be cleared.
    Where it cannot be had (no Linux, no sockets on the project's file system), jobs start without one.
    """
    if not sys.platform.startswith("linux"):
        return
    folders = project / ".snakemake"
    for left in folders.glob("forkserver-*"):  # by one that was killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = folders / f"forkserver-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with listen(folder) as listener, (folder / "log").open("wb") as log:
            inherited = {key: value for key, value in os.environ.items() if key not in {*cleared}}
            words = [sys.executable, str(PROGRAM), str(folder.resolve()), *environment]
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
    """A new socket in a folder, which only its owner can reach.

    Raises:
        OSError: the file system has no sockets, or there is no room.
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
    """Address of the socket in an open folder: a path may be longer than the 108 bytes that an address can have."""
    return f"/proc/self/fd/{folder}/socket"


def _peer(connection: socket.socket) -> int:
    """User id of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


# The server


def serve(listener: socket.socket, prepare: Callable[[], None], environment: dict[str, str]) -> NoReturn:
    """Fork a monitor for each connection, for ever. ``prepare`` imports; it is called at the first one."""
    prepared = False
    # Monitors end unseen.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        with connection:
            if _peer(connection) != os.getuid():
                continue
            if not prepared:
                prepare()
                gc.collect()
                gc.freeze()  # collections in a fork would otherwise copy all of its memory
                prepared = True
            if threads() > 1:
                print(f"error: {threads()} threads after the imports; nothing is forked.", flush=True)
                continue
            try:
                child = os.fork()
            except OSError as error:  # no memory: the job may still start as a process of its own
                print(f"error: no fork: {error}", flush=True)
                continue
            if child == 0:
                listener.close()
                try:
                    _monitor(connection, environment)
                finally:
                    os._exit(0)


def threads() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _monitor(connection: socket.socket, environment: dict[str, str]) -> None:
    """Fork the job of a connection; hand on the client's signals, and the job's status."""
    for number in (signal.SIGCHLD, *processes.STOP):
        signal.signal(number, signal.SIG_DFL)
    processes.name("fork monitor")
    prefix, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    if len(prefix) < 4:
        return
    (length,) = struct.unpack("!i", prefix)
    request = json.loads(connection.recv(length, socket.MSG_WAITALL))
    if request["root"] != str(ROOT):
        return  # a client with other code than this server imported
    job = Fork(lambda: _job(connection, request, descriptors, environment))
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(BEGUN)
    ended = os.pidfd_open(job.pid)
    while True:
        if ended in select.select([connection.fileno(), ended], [], [])[0]:
            connection.sendall(struct.pack("!i", job.wait()))
            return
        signals = connection.recv(16)
        for code in signals or bytes([signal.SIGKILL]):
            job.send_signal(code)
        if not signals:
            job.wait()
            return


def _job(
    connection: socket.socket, request: dict[str, Any], descriptors: list[int], environment: dict[str, str]
) -> None:
    """Become the program of a request."""
    global _served
    connection.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _served = environment
    os.environ.clear()
    os.environ.update(request["environment"])
    processes.client = request["client"]
    os.chdir(request["folder"])
    run_script(request["words"])


# Forks


class Fork:
    """A forked process, with the methods of subprocess.Popen that a launcher needs."""

    def __init__(self, target: Callable[[], None], die_by: int = signal.SIGKILL) -> None:
        """Call ``target`` in a fork, which gets the signal ``die_by`` when this process ends."""
        import multiprocessing

        def run() -> None:
            processes.obey(FORWARDED)
            processes.die_with_parent(die_by, parent)
            target()

        parent = os.getpid()
        self._process = multiprocessing.get_context("fork").Process(target=run)
        self._process.start()
        self.pid = int(self._process.pid or 0)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end; returns its status, of a signal its negative number."""
        self._process.join()
        return int(self._process.exitcode or 0)


def run_script(words: list[str]) -> None:
    """Run a program of this project, with its arguments, as Python would in a process of its own.

    It is imported, not run as ``__main__``: torchrun calls ``inspect.stack`` at each step of a rendezvous, which looks
    through all modules for each frame that is in none of them.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr)  # type: ignore[union-attr]
    name = Path(words[0]).stem
    processes.name(name)
    sys.argv = words
    spec = importlib.util.spec_from_file_location(name, words[0])
    assert spec, words[0]
    assert spec.loader, words[0]
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run_program(module.main)
