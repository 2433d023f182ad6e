"""A line of progress per test file, with an estimate of what is left; tests that only run in the long form; and which
tests share a process where there are several (pytest-xdist).

The estimate comes from tests/seconds.json, what each file took on two idle cores: pytest --record-seconds writes it.
"""

import json
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from helpers import faults
from helpers.common import ROOT

SECONDS = ROOT / "tests/seconds.json"
UNKNOWN = 5.0
"""Seconds of a file that was never recorded."""
CLUSTER = "tests/cluster"


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests marked long")
    parser.addoption("--record-faults", action="store_true", help="write what runs survived to tests/faults.json")
    parser.addoption("--record-seconds", action="store_true", help="write what each file took to tests/seconds.json")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: runs with --long only (make test-all)")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "shardlab-progress")


def expected():
    """Seconds that each test file took once."""
    return json.loads(SECONDS.read_text()) if SECONDS.exists() else {}


def group(file):
    """Tests of a file stay in one process, and those of the one cluster."""
    return CLUSTER if file.startswith(CLUSTER) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        """As pytest-xdist's loadgroup, whose marks do not reach the scheduler under pytest 9.2."""

        def _split_scope(self, nodeid):
            return group(nodeid.split("::")[0])

    return ByGroup(config, log)


def longest_first(items):
    known, seconds = expected(), Counter()
    for file in {item.location[0] for item in items}:
        seconds[group(file)] += known.get(file, UNKNOWN)
    items.sort(key=lambda item: -seconds[group(item.location[0])])


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        longest_first(items)
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="the long form: make test-all"))


class Progress:
    def __init__(self, config):
        self.config = config
        self.expected = expected()
        self.left = Counter()
        self.taken = defaultdict(float)
        self.outcomes = defaultdict(Counter)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        self.start(item.location[0] for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        """Each process has collected the same."""
        if not self.left:
            self.start(name.split("::")[0] for name in ids)

    def start(self, files):
        self.left = Counter(files)
        self.files = list(self.left)
        self.begin = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report, config):
        """No dot for a test that passed: its file gets a line."""
        if report.when == "call" and report.passed and config.get_verbosity() < 1:
            return "passed", "", "PASSED"
        return None

    def pytest_runtest_logreport(self, report):
        file = report.location[0]
        self.taken[file] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[file][report.outcome] += 1
        if report.when == "teardown":
            self.left[file] -= 1
            if not self.left[file]:
                self.line(file)

    def line(self, file):
        took = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes[file].items())
        text = f"{file:<48} {took:<24} {self.taken[file]:6.1f} s   {self.estimate()}"
        writer = self.config.get_terminal_writer()
        writer.line()
        writer.write(text, flush=True)

    def estimate(self):
        """What is left: what the files to come took once, times how much slower this run is than that one."""
        done = [file for file in self.files if not self.left[file]]
        recorded = sum(self.expected.get(file, UNKNOWN) for file in done)
        to_come = sum(self.expected.get(file, UNKNOWN) for file in self.files if self.left[file])
        if not to_come:
            return "all done"
        pace = (time.monotonic() - self.begin) / recorded if recorded > 20 else 1.0
        left = to_come * pace
        return f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"

    def pytest_sessionfinish(self, exitstatus):
        if self.config.getoption("--record-faults"):
            faults.write()
        if self.config.getoption("--record-seconds") and exitstatus == 0:
            now = self.expected | {file: round(seconds, 1) for file, seconds in self.taken.items()}
            known = {file: seconds for file, seconds in sorted(now.items()) if (Path(ROOT) / file).exists()}
            SECONDS.write_text(json.dumps(known, indent=2) + "\n")
