"""Progress display of a call: a bar with an estimate, a line per finished run, a sentence per failure. If the output is
not a terminal, a line per tenth of the jobs in place of bar and runs.

Snakemake's usual ten lines per job go to its log, `.snakemake/log`.
"""

import logging
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from shardlab.errors import IN_LOG, UserError
from shardlab.files import read_json
from shardlab.patches import snakemake_core

SHOWN = ("Nothing to be done", "of an earlier call", "Shutting down", "Will exit")
"""Messages without a job that are shown."""
OF_FAILURES = "Complete log"
"""Shown, too, if something failed."""
LONG = ("wheelhouse", "image", "download", "download_model", "preflight_nodes")
"""Rules whose one job may take minutes, in which nothing else happens: their message is shown."""
NOTED = ("download", "download_model", "prepare", "init")
"""Rules whose notes on data and weights are shown."""
NOTE = re.compile(r"^note: .*$", re.MULTILINE)
OF_PREFLIGHT = re.compile(r"^(?:\[\w+\]:)?(wrong: .*)$", re.MULTILINE)
RUN = re.compile(r"results/([^/]+)/([^/]+?)(?:\.done|/test\.json)$")


def install() -> None:
    """Replace the handler of Snakemake that prints."""

    def lines(stream: Any, old: logging.Handler) -> logging.Handler:
        return Lines(Console(file=stream, highlight=False, soft_wrap=True), old)

    snakemake_core.replace_stream_handlers(lines)


class Lines(logging.Handler):
    """Shows the events of Snakemake's log."""

    def __init__(self, console: Console, before: logging.Handler | None = None) -> None:
        """``before``: the handler that this one replaces; its filters are kept (--quiet)."""
        super().__init__()
        self.console = console
        self.filters = list(before.filters) if before else []
        self.jobs: dict[Any, logging.LogRecord] = {}
        columns = [BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn()]
        self.bar = Progress(*columns, console=console, transient=True)
        self.stopped = self.failed = False
        self.tenths = 0
        self.task = self.bar.add_task("", total=None)

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or remember it for later."""
        try:
            event = str(getattr(record, "event", None) or "message")
            if show := getattr(self, f"_{event}", None):  # others are in Snakemake's log alone
                show(record)
            if self.bar.live.is_started:
                self.bar.refresh()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()
        super().close()

    def _message(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Terminating processes on user request"):
            self._stopped()
        elif text.startswith("RuleException:") or not text.strip() or (self.stopped and text.startswith("Exiting")):
            return  # the error of the failed job says it
        elif record.levelno >= logging.WARNING:
            self.console.print(Text(text, "red" if record.levelno >= logging.ERROR else "yellow"))
        elif any(words in text for words in SHOWN) or (self.failed and OF_FAILURES in text):
            self.console.print(text)

    _error = _message

    def _stopped(self) -> None:
        """Report once after Ctrl-C that nothing is lost, whether a job or Snakemake notices it first."""
        if not self.stopped:
            self.console.print("stopped; run the same command again to resume")
        self.stopped = True

    def _run_info(self, record: logging.LogRecord) -> None:
        self.bar.update(self.task, total=dict(getattr(record, "stats", {})).get("total", 0))
        if self.console.is_terminal:
            self.bar.start()

    def _job_info(self, record: logging.LogRecord) -> None:
        self.jobs[getattr(record, "jobid", None)] = record
        if getattr(record, "rule_name", "") in LONG:
            self.console.print(Text(str(getattr(record, "rule_msg", ""))))

    def _job_finished(self, record: logging.LogRecord) -> None:
        job = self.jobs.get(getattr(record, "job_id", None))
        rule = getattr(job, "rule_name", "")
        if self.console.is_terminal and rule == "evaluate":
            self.console.print(Text(finished(getattr(job, "wildcards", {}))))
        for path in filter(Path.is_file, _logs(job) if rule in NOTED else ()):
            for note in NOTE.findall(path.read_text(encoding="utf-8", errors="replace")):
                self.console.print(Text(f"{note} ({path})", "yellow"))

    def _progress(self, record: logging.LogRecord) -> None:
        done, total = getattr(record, "done", 0), getattr(record, "total", None)
        self.bar.update(self.task, completed=done, total=total)
        if not self.console.is_terminal and total and 10 * done // total > self.tenths:
            self.tenths = 10 * done // total
            self.console.print(f"{done} of {total} jobs done")

    def _job_error(self, record: logging.LogRecord) -> None:
        self.failed = True
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
    logs = _logs(record)
    named = RUN.match(str(next(iter(getattr(record, "output", []) or []), "")))
    # What the executor says, such as sbatch's refusal, without the script that was submitted.
    words = str(getattr(record, "rule_msg", None) or "").partition("sbatch call:")[0].split()
    of_executor = f" {' '.join(words)}" if words else ""
    what = f"{getattr(record, 'rule_name', 'job')}" + (f" of {named[1]} x {named[2]}" if named else "")
    for path in filter(Path.is_file, logs):
        text = path.read_text(encoding="utf-8", errors="replace")
        if problems := OF_PREFLIGHT.findall(text):
            return "\n".join([*dict.fromkeys(problems), f"{what} failed; see {path}"])
        if errors := IN_LOG.findall(text):
            # The launcher's own line, the last one, only points to the error of the program that it started.
            reasons = [each for each in errors if not each.endswith("see the error above.")] or errors
            return f"{what}: {reasons[-1]} ({path}){of_executor}"
    return f"{what} failed" + (f"; see {logs[0]}." if logs else ".") + of_executor


def _logs(job: logging.LogRecord | None) -> list[Path]:
    return [Path(str(path)) for path in getattr(job, "log", []) or []]
