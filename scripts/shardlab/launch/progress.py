"""What a person at a terminal sees of a call: a bar with an estimate, a line per finished run, a sentence per failure.

Snakemake's own ten lines a job go to its log, `.snakemake/log`, as ever; where the output is no terminal they stay.
Its handler for terminals is replaced among its logger's handlers: a plugin of its own would have to be an installed
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
from shardlab.report.notes import seconds_by_rule

GUESS = {"train": 12.0, "twins": 40.0, "evaluate": 6.0}
"""Seconds of a job where none of its rule has ended yet, in this call or an earlier one; others take OTHERS."""
OTHERS = 2.0
SHOWN = ("Nothing to be done", "Complete log", "of an earlier call", "Shutting down", "Will exit")
"""What is shown of the sentences that belong to no job."""
RUN = re.compile(r"results/([^/]+)/([^/]+?)(?:\.done|/test\.json)$")


def install(project: Path) -> None:
    """Replace Snakemake's handler, where it writes to a terminal, for calls in the ``project``'s folder."""

    def lines(stream: Any, old: logging.Handler) -> logging.Handler:
        return Lines(Console(file=stream, highlight=False), seconds_by_rule(project), old)

    snakemake_logging.replace_terminal_handlers(lines)


class Lines(logging.Handler):
    """Shows the events of Snakemake's log on a terminal."""

    def __init__(self, console: Console, recorded: dict[str, float], before: logging.Handler | None = None) -> None:
        """``before``: the handler that this one stands for; its filters stay (--quiet)."""
        super().__init__()
        self.console, self.estimate = console, Estimate(recorded)
        self.filters = list(before.filters) if before else []
        self.jobs: dict[Any, logging.LogRecord] = {}
        columns = [
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        ]
        self.bar = Progress(*columns, console=console, transient=True)
        self.stopped = False
        self.task = self.bar.add_task("", total=None, left="")

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or keep what it says for later."""
        try:
            event = str(getattr(record, "event", None) or "message")
            getattr(self, f"_{event}", self._ignore)(record)
            self.bar.refresh()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Take the bar away."""
        self.bar.stop()
        super().close()

    def _ignore(self, record: logging.LogRecord) -> None:
        """What only Snakemake's log has."""

    def _message(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Terminating processes on user request"):
            self._stopped()
        elif text.startswith("RuleException:") or not text.strip() or (self.stopped and text.startswith("Exiting")):
            return  # the sentence of the job that failed says it
        elif record.levelno >= logging.WARNING:
            self.console.print(Text(text, "red" if record.levelno >= logging.ERROR else "yellow"))
        elif any(words in text for words in SHOWN):
            self.console.print(text)

    _error = _message

    def _stopped(self) -> None:
        """Say once that all is well after Ctrl-C, whether a job hears of it first or Snakemake."""
        if not self.stopped:
            self.console.print("stopped; the same call goes on where each run was")
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
        if "was told to stop (SIGINT)" in sentence:
            self._stopped()
        else:
            self.console.print(Text(sentence, "red"))


def finished(wildcards: dict[str, str], results: Path = Path("results")) -> str:
    """A line for a run: its test loss, how far that is from one device's where that is known, its time."""
    folder = results / wildcards["strategy"] / wildcards["workload"]
    text = f"{wildcards['strategy']} x {wildcards['workload']}"
    try:
        loss = read_json(folder / "test.json", "report", "")["loss"]
        seconds = read_json(folder / "train.json", "report", "")["wall_seconds"]
        single = results / "single" / wildcards["workload"] / "test.json"
        apart = ""
        if wildcards["strategy"] != "single" and single.exists():
            reference = read_json(single, "report", "")["loss"]
            apart = f" ({abs(loss - reference) / reference:.0e})"
    except (UserError, KeyError, TypeError, ZeroDivisionError):
        return f"{text:<28} done"
    return f"{text:<28} loss {loss:.6f}{apart:<9} {seconds:8.1f} s"


def failed(record: logging.LogRecord) -> str:
    """One sentence for a job that failed, from its log, and where the rest is."""
    logs = [Path(str(path)) for path in getattr(record, "log", []) or []]
    named = RUN.match(str(next(iter(getattr(record, "output", []) or []), "")))
    what = f"{getattr(record, 'rule_name', 'job')}" + (f" of {named[1]} x {named[2]}" if named else "")
    for path in logs:
        if path.is_file() and (found := IN_LOG.findall(path.read_text(encoding="utf-8", errors="replace"))):
            return f"{what}: {found[-1]} ({path})"
    return f"{what} failed" + (f"; see {logs[0]}" if logs else "")


class Estimate:
    """Seconds that are left: of each rule what a job took, times those that are to come, over what ran side by side."""

    def __init__(self, recorded: dict[str, float]) -> None:
        """``recorded``: seconds of a job by rule, from earlier calls."""
        self.recorded = recorded
        self.to_come: Counter[str] = Counter()
        self.running: dict[Any, tuple[str, float]] = {}
        self.took: dict[str, list[float]] = defaultdict(list)
        self.begun: float | None = None

    def expect(self, stats: dict[str, int]) -> None:
        """How many jobs of each rule there are in all."""
        self.to_come = Counter(stats)

    def begin(self, number: Any, rule: str, now: float | None = None) -> None:
        """A job begins."""
        now = time.monotonic() if now is None else now
        self.begun = now if self.begun is None else self.begun
        self.running[number] = (rule, now)

    def end(self, number: Any, now: float | None = None) -> None:
        """A job has ended."""
        if number in self.running:
            rule, began = self.running.pop(number)
            self.took[rule].append((time.monotonic() if now is None else now) - began)
            self.to_come[rule] -= 1

    def each(self, rule: str) -> float:
        """Seconds of a job of a rule."""
        if mine := self.took[rule]:
            return sum(mine) / len(mine)
        return self.recorded.get(rule, GUESS.get(rule, OTHERS))

    def seconds(self, now: float | None = None) -> float:
        """Until all is done."""
        now = time.monotonic() if now is None else now
        work = sum(max(0, count) * self.each(rule) for rule, count in self.to_come.items())
        under_way = [(self.each(rule), now - began) for rule, began in self.running.values()]
        work -= sum(min(each, so_far) for each, so_far in under_way)
        spent = sum(map(sum, self.took.values())) + sum(so_far for _, so_far in under_way)
        elapsed = now - self.begun if self.begun is not None else 0.0
        return work / max(1.0, spent / elapsed if elapsed > 0 else 1.0)

    def left(self) -> str:
        """About how long, in words; nothing once all is done."""
        if not any(self.to_come.values()):
            return ""
        seconds = self.seconds()
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {max(1, seconds):.0f} s left"
