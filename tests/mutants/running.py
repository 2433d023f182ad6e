"""Runs of pytest in forks of this process, which has imported what the tests need, but nothing of the project."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import connection, get_context
from pathlib import Path
from unittest import mock

import diagnosing
import pytest
from fault import Fault
from judge import Failure

ROOT = Path(__file__).resolve().parents[2]
FORK = get_context("fork")
SECONDS = 300
"""Time limit of a run; a test that hangs fails by pytest-timeout a little before."""
MODULES = (
    *("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp"),
    *("torch.distributed.pipelining", "torch.distributed.tensor.parallel", "torch.nn.attention"),
    *("torch.distributed.checkpoint.hf_storage", "torch._subclasses.fake_tensor", "torch.utils.flop_counter"),
    *("transformers", "tensorboardX", "numpy", "pandas", "pydantic", "yaml", "safetensors.torch", "sklearn.datasets"),
    *("altair", "tabulate"),
)


@dataclass
class Run:
    """One run of pytest: some tests, without a fault or with one."""

    tests: tuple[str, ...]
    fault: Fault | None = None
    task: tuple = ()
    """Instead of tests: kind, the cases or the case, and the folder (see ``_task``)."""
    found: dict = field(default_factory=dict)
    """Result of the task."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Test: reason."""
    failures: list[Failure] = field(default_factory=list)
    output: str = ""
    seconds: float = 0.0


def warm() -> None:
    """Import what takes long."""
    for name in MODULES:
        import_module(name)
    import torch

    # As parallel/zero.py does it.
    with mock.patch.dict(os.environ, DS_ACCELERATOR="cpu"), mock.patch.object(torch, "compile", lambda model: model):
        import_module("deepspeed.runtime.zero.muon.original_muon")
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def copies(folder):
    """Copies of the project's files, one for each core."""
    return [_copy(folder / f"copy{number}") for number in range(len(os.sched_getaffinity(0)))]


def _copy(folder):
    """A copy of the project's files."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


def work_off(runs, copies):
    """Work off runs, one at a time in each copy of the project; yields each when it has ended."""
    waiting, free, under_way = deque(runs), list(copies), {}
    try:
        while waiting or under_way:
            while waiting and free:
                started = _Started(waiting.popleft(), free.pop())
                under_way[started.process.sentinel] = started
            connection.wait(list(under_way), timeout=0.5)
            for sentinel, started in [*under_way.items()]:
                if started.is_over():
                    del under_way[sentinel]
                    free.append(started.copy)
                    yield started.end()
    finally:
        for started in under_way.values():
            started.end()


class _Started:
    """A run at work in a copy of the project."""

    def __init__(self, run, copy):
        self.run, self.copy, self.began = run, copy, time.monotonic()
        self.path = copy / run.fault.file if run.fault else None
        if self.path:
            self.before, self.times = self.path.read_text(encoding="utf-8"), self.path.stat()
            self.path.write_text(run.fault.put_into(self.before), encoding="utf-8")
        self.notes, self.log = copy.with_suffix(".json"), copy.with_suffix(".log")
        self.notes.unlink(missing_ok=True)
        self.process = FORK.Process(target=_work, args=(run, copy, self.notes, self.log))
        self.process.start()

    def is_over(self):
        return not self.process.is_alive() or time.monotonic() - self.began > SECONDS

    def end(self):
        """End what is left of it, put the file back as it was, and read what pytest saw."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # ranks and programs that it started
        self.process.kill()
        self.process.join()
        if self.path:
            self.path.write_text(self.before, encoding="utf-8")
            # With its time the compiled file of before is the right one again.
            os.utime(self.path, ns=(self.times.st_atime_ns, self.times.st_mtime_ns))
        self.run.seconds = time.monotonic() - self.began
        self.run.output = self.log.read_text(errors="replace") if self.log.exists() else ""
        if not self.notes.exists():
            self.run.failures.append(Failure("", ("Ended",), f"pytest ended with status {self.process.exitcode}"))
            return self.run
        found = json.loads(self.notes.read_text())
        if self.run.task:
            self.run.found = found
            return self.run
        self.run.skipped = found["skipped"]
        self.run.failures = [Failure(**each | {"names": tuple(each["names"])}) for each in found["failures"]]
        return self.run


def _work(run, copy, notes, log):
    """Run pytest, or a diagnosis, in this process, a fork, with a copy of the project."""
    os.setsid()
    os.chdir(copy)
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent]
    if run.fault:
        # The compiled files stay those of the code without a fault.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if run.task:
        with log.open("w", buffering=1) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            return _task(*run.task, copy, notes)
    # A fault's tests may be of the long form.
    options = ["--long", "-x", "-p", "no:cacheprovider"]
    options += [f"--basetemp={copy.with_suffix('.tmp')}", f"--timeout={SECONDS - 30}"]
    with log.open("w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        with redirect_stdout(file), redirect_stderr(file):
            seen = _Seen()
            status = pytest.main([*options, *run.tests], plugins=[seen])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # such as a test that is not found
        failure = {"test": "", "names": ["Ended"], "text": f"pytest ended with {pytest.ExitCode(status).name}"}
        seen.found["failures"].append(failure)
    notes.write_text(json.dumps(seen.found))


def _task(kind, value, place, copy, notes):
    """Capture references, or diagnose a fault."""
    diagnosing.use(copy)
    import group

    group.start = lambda _: _Ranks()
    found = {}
    if kind == "capture references":
        diagnosing.capture_references(value, place)
    else:
        scratch = copy.with_suffix(".diagnosis")
        shutil.rmtree(scratch, ignore_errors=True)
        found = diagnosing.diagnose(value, place, scratch)
    notes.write_text(json.dumps(found))


class _Seen:
    """A plugin that notes what was skipped, and the error of what did not pass."""

    def __init__(self):
        self.found = {"skipped": {}, "failures": []}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.skipped:
            self.found["skipped"][item.nodeid] = str(call.excinfo.value if call.excinfo else "")
        elif report.failed:
            for error in _single(call.excinfo.value):
                self._fail(item.nodeid, error)
        return report

    def pytest_collectreport(self, report):
        if report.failed:
            failure = {"test": report.nodeid, "names": ["CollectionError"], "text": str(report.longrepr)}
            self.found["failures"].append(failure)

    def pytest_collection_finish(self):
        if group := sys.modules.get("group"):
            start = group.start
            group.start = lambda environment: start(environment) if environment else _Ranks()

    def _fail(self, test, error):
        frames = error.__traceback__
        while frames and frames.tb_next:
            frames = frames.tb_next
        origin = frames.tb_frame.f_code.co_filename if frames else ""
        names = [kind.__name__ for kind in type(error).__mro__]
        self.found["failures"].append({"test": test, "names": names, "text": str(error), "origin": origin})


def _single(error):
    """The errors of a group, which hypothesis raises; any other as it is."""
    return [each for inner in error.exceptions for each in _single(inner)] if hasattr(error, "exceptions") else [error]


class _Ranks:
    """The process of tests/parity/ranks.py as a fork, with what group.Server asks of it."""

    def __init__(self):
        (requested, ask), (say, said) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(ask, "w"), os.fdopen(say)
        self._process = FORK.Process(target=self._serve, args=(requested, said), daemon=False)
        self._process.start()
        os.close(requested)
        os.close(said)

    def terminate(self):
        self._process.terminate()

    def wait(self):
        self._process.join()
        return self._process.exitcode

    def _serve(self, requested, said):
        self.stdin.close()
        sys.stdin, sys.stdout = os.fdopen(requested), os.fdopen(said, "w")
        import_module("ranks").main()
