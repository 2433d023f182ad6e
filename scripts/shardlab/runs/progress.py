"""Progress display of a call on a terminal: a bar with an estimate, a line per finished run, a sentence per failure.

Snakemake's usual ten lines per job go to its log, `.snakemake/log`; if the output is not a terminal, they are also
printed. Its terminal handler is replaced among its logger's handlers: a logger plugin would have to be an installed
package, which this project is not.
"""

import logging
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from shardlab.errors import IN_LOG, UserError
from shardlab.files import read_json
from shardlab.patches import snakemake_logging
from shardlab.report.snakemake_jobs import seconds_by_rule

GUESS = {"train": 12.0, "noise_floor": 40.0, "evaluate": 6.0}
"""Estimated seconds per job if none of its rule has ended yet, in this call or an earlier one; other rules: OTHERS."""
OTHERS = 2.0
SHOWN = ("Nothing to be done", "Complete log", "of an earlier call", "Shutting down", "Will exit")
"""Messages without a job that are shown."""
RUN = re.compile(r"results/([^/]+)/([^/]+?)(?:\.done|/test\.json)$")


def install(project: Path) -> None:
    """Replace Snakemake's handler, where it writes to a terminal, for calls in the ``project``'s folder."""

    def lines(stream: Any, old: logging.Handler) -> logging.Handler:
        return Lines(Console(file=stream, highlight=False), seconds_by_rule(project), old)

    snakemake_logging.replace_terminal_handlers(lines)


class Lines(logging.Handler):
    """Shows the events of Snakemake's log on a terminal."""

    def __init__(self, console: Console, recorded: dict[str, float], before: logging.Handler | None = None) -> None:
        """``before``: the handler that this one replaces; its filters are kept (--quiet)."""
        super().__init__()
        self.console, self.estimate = console, Estimate(recorded)
        self.filters = list(before.filters) if before else []
        self.jobs: dict[Any, logging.LogRecord] = {}
        columns = [BarColumn(None), MofNCompleteColumn(), TextColumn("{task.fields[left]}")]
        self.bar = Progress(*columns, console=console, transient=True)
        self.stopped = False
        self.task = self.bar.add_task("", total=None, left="")

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or remember it for later."""
        try:
            event = str(getattr(record, "event", None) or "message")
            getattr(self, f"_{event}", self._ignore)(record)
            self.bar.refresh()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self.bar.stop()
        super().close()

    def _ignore(self, record: logging.LogRecord) -> None:
        """Ignore records that only Snakemake's log shows."""

    def _message(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Terminating processes on user request"):
            self._stopped()
        elif text.startswith("RuleException:") or not text.strip() or (self.stopped and text.startswith("Exiting")):
            return  # the error of the failed job says it
        elif record.levelno >= logging.WARNING:
            self.console.print(Text(text, "red" if record.levelno >= logging.ERROR else "yellow"))
        elif any(words in text for words in SHOWN):
            self.console.print(text)

    _error = _message

    def _stopped(self) -> None:
        """Report once after Ctrl-C that nothing is lost, whether a job or Snakemake notices it first."""
        if not self.stopped:
            self.console.print("stopped; run the same command again to resume")
        self.stopped = True

    def _run_info(self, record: logging.LogRecord) -> None:
        stats = dict(getattr(record, "stats", {}))
        total = stats.pop("total", 0)
        self.estimate.expect(stats)
        self.bar.update(self.task, total=total, left=self.estimate.left())
        self.bar.start()

    def _job_info(self, record: logging.LogRecord) -> None:
        self.jobs[getattr(record, "jobid", None)] = record
        self.estimate.begin(getattr(record, "jobid", None), getattr(record, "rule_name", ""))

    def _job_finished(self, record: logging.LogRecord) -> None:
        number = getattr(record, "job_id", None)
        self.estimate.end(number)
        job = self.jobs.get(number)
        if job is not None and getattr(job, "rule_name", "") == "evaluate":
            self.console.print(Text(finished(getattr(job, "wildcards", {}))))

    def _progress(self, record: logging.LogRecord) -> None:
        self.bar.update(self.task, completed=getattr(record, "done", 0), total=getattr(record, "total", None))
        self.bar.update(self.task, left=self.estimate.left())

    def _job_error(self, record: logging.LogRecord) -> None:
        sentence = failed(record)
        if "stopped on request (SIGINT)" in sentence:
            self._stopped()
        else:
            self.console.print(Text(sentence, "red"))


def finished(wildcards: dict[str, str], results: Path = Path("results")) -> str:
    """Format a run's line: its test loss, the difference from one device's if known, its time."""
    folder = results / wildcards["strategy"] / wildcards["workload"]
    text = f"{wildcards['strategy']} x {wildcards['workload']}"
    try:
        loss = read_json(folder / "test.json", "report", "")["loss"]
        seconds = read_json(folder / "train.json", "report", "")["wall_seconds"]
        single = results / "single" / wildcards["workload"] / "test.json"
        difference = ""
        if wildcards["strategy"] != "single" and single.exists():
            reference = read_json(single, "report", "")["loss"]
            difference = f" ({abs(loss - reference) / reference:.0e})"
    except (UserError, KeyError, TypeError, ZeroDivisionError):
        return f"{text:<28} done"
    return f"{text:<28} loss {loss:.6f}{difference:<9} {seconds:8.1f} s"


def failed(record: logging.LogRecord) -> str:
    """Summarize a failed job in one sentence, from its log, with the path of the rest."""
    logs = [Path(str(path)) for path in getattr(record, "log", []) or []]
    named = RUN.match(str(next(iter(getattr(record, "output", []) or []), "")))
    what = f"{getattr(record, 'rule_name', 'job')}" + (f" of {named[1]} x {named[2]}" if named else "")
    for path in logs:
        if path.is_file() and (errors := IN_LOG.findall(path.read_text(encoding="utf-8", errors="replace"))):
            return f"{what}: {errors[-1]} ({path})"
    return f"{what} failed" + (f"; see {logs[0]}" if logs else "")


class Estimate:
    """Estimated remaining time: seconds per job of each rule, times the jobs to come, divided by the parallelism so
    far.
    """

    def __init__(self, recorded: dict[str, float]) -> None:
        """``recorded``: seconds per job by rule, from earlier calls."""
        self.recorded = recorded
        self.to_come: Counter[str] = Counter()
        self.running: dict[Any, tuple[str, float]] = {}
        self.took: dict[str, list[float]] = defaultdict(list)
        self.started: float | None = None

    def expect(self, stats: dict[str, int]) -> None:
        self.to_come = Counter(stats)

    def begin(self, number: Any, rule: str, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        self.started = now if self.started is None else self.started
        self.running[number] = (rule, now)

    def end(self, number: Any, now: float | None = None) -> None:
        if number in self.running:
            rule, began = self.running.pop(number)
            self.took[rule].append((time.monotonic() if now is None else now) - began)
            self.to_come[rule] -= 1

    def each(self, rule: str) -> float:
        if local := self.took[rule]:
            return sum(local) / len(local)
        return self.recorded.get(rule, GUESS.get(rule, OTHERS))

    def seconds(self, now: float | None = None) -> float:
        now = time.monotonic() if now is None else now
        work = sum(max(0, count) * self.each(rule) for rule, count in self.to_come.items())
        under_way = [(self.each(rule), now - began) for rule, began in self.running.values()]
        work -= sum(min(each, so_far) for each, so_far in under_way)
        spent = sum(map(sum, self.took.values())) + sum(so_far for _, so_far in under_way)
        elapsed = now - self.started if self.started is not None else 0.0
        return work / max(1.0, spent / elapsed if elapsed > 0 else 1.0)

    def left(self) -> str:
        """Format the approximate remaining time; empty once all jobs are done."""
        if not any(self.to_come.values()):
            return ""
        seconds = self.seconds()
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {max(1, seconds):.0f} s left"
