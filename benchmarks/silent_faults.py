#!/usr/bin/env python3
"""Reproduce silent faults that other projects published, and see where each shows.

Each is put into a copy of this project's code, as by `make mutants`, and a
small model is trained with it on two or four ranks, in float32, bf16 and
float64. Its losses and gradient norms are compared with those of one device,
the run is judged as a summary does it, and its first steps are diagnosed. The
same trainings without a fault show false alarms. Writes the lists of
docs/evidence.md; with words, only prints faults whose name or source has them.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
os.environ.pop("PYTHONPATH", None)  # programs that are started are those of the copy

import argparse
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/mutants"))

import diagnosing  # type: ignore[import-not-found]
import measuring  # type: ignore[import-not-found]
import running  # type: ignore[import-not-found]
from fault import Fault, Published  # type: ignore[import-not-found]
from faults import FAULTS, NOT_REPRODUCED  # type: ignore[import-not-found]
from running import ROOT, Run

VISIBLE = 0.01
"""Relative difference of a loss or a gradient norm that a plot shows."""
UNSEEN, SOUND = "-", "no fault"


@dataclass
class Training:
    """A training with a fault, or without one, and what was seen of it."""

    case: str
    fault: Fault | None = None
    found: dict[str, Any] = field(default_factory=dict)
    """What the diagnosis found."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """By precision: equality, and where it is not equal."""
    seen: dict[str, str] = field(default_factory=dict)
    """In float32, by column: at which step."""

    @property
    def name(self) -> str:
        return str(self.fault.name) if self.fault else SOUND

    @property
    def folder(self) -> str:
        return re.sub(r"\W+", "-", f"{self.case} {self.name}")[:120]

    @property
    def is_seen(self) -> bool:
        """True if a verdict or the diagnosis sees it."""
        return bool(self.found.get("first")) or any(map(self.is_unequal, self.verdicts))

    def is_unequal(self, precision: str) -> bool:
        """True if the verdict in a precision is unequal, or the training stops."""
        return not self.verdicts[precision].startswith(UNSEEN)

    def shows(self, column: str) -> bool:
        """True if losses or norms show it."""
        return self.seen.get(column, UNSEEN) != UNSEEN


def main() -> None:
    """Train, judge, print and write."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of a fault's name or source: only these, and no page")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/evidence.md", help="page with the tables' markers")
    args = parser.parse_args()
    words = " ".join(args.words)
    asked = [fault for fault in FAULTS if fault.published and words in f"{fault.published} {fault.name}"]
    if not asked:
        sys.exit(f"error: no published fault has `{words}` in its name or source.")
    trainings = [Training(fault.shown_by, fault) for fault in asked if fault.shown_by]
    trainings += [Training(case) for case in dict.fromkeys(training.case for training in trainings)]
    running.warm()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        place = Path(folder) / "trainings"
        measure(trainings, running.copies(Path(folder)), place)
        sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests"), str(ROOT / "tests/parity")]
        judge(trainings, place)
    # Not before the last fork, which imports it from a copy.
    from docs import fill
    from shardlab.files import write_text

    minutes = (time.monotonic() - began) / 60
    blocks = {
        "published faults": listed(trainings),
        "counts": counts(trainings, minutes),
        "elsewhere": elsewhere([fault for fault in asked if not fault.shown_by], NOT_REPRODUCED),
    }
    print("\n\n".join(blocks.values()))
    if not words:
        write_text(args.output, fill(args.output, blocks))
        print(f"wrote {args.output}")
    unseen = [training.name for training in trainings if training.fault and not training.is_seen]
    alarms = [training.case for training in trainings if not training.fault and training.is_seen]
    if alarms:
        sys.exit(f"error: these trainings without a fault are not equal to one device: {', '.join(alarms)}.")
    if unseen:
        print(f"\nSeen by no layer: {', '.join(unseen)}")


def measure(trainings: list[Training], copies: list[Path], place: Path) -> None:
    """Train and capture everything; fills in what the diagnosis found."""
    diagnosing.prepare(copies[0], place / "data")
    cases = [*dict.fromkeys(training.case for training in trainings)]
    by_reference: dict[Path, list[str]] = defaultdict(list)
    for case in cases:
        by_reference[measuring.folder_of(case, "float32", place)].append(case)
    runs = [Run((), task=("train references", texts, place)) for texts in by_reference.values()]
    runs += [Run((), task=("capture references", [case], place)) for case in cases]
    _ = [*finish(runs, copies)]
    captured = [Run((), each.fault, ("diagnose", each.case, place)) for each in trainings]
    trained = [Run((), each.fault, ("train", (each.case, each.folder), place)) for each in trainings]
    of_runs = dict(zip(map(id, captured), trainings, strict=True))
    for run in finish(captured + trained, copies):
        if training := of_runs.get(id(run)):
            training.found = run.found
            print(f"{training.name}, {training.case}: {run.found['sentence']}", flush=True)


def finish(runs: list[Run], copies: list[Path]) -> Iterator[Run]:
    """Yield runs as they end; ends the program where one fails."""
    for run in running.work_off(runs, copies):
        if run.failures:
            name = run.fault.name if run.fault else SOUND
            sys.exit(f"error: {name}: {run.task[:2]} failed:\n{run.output[-3000:]}")
        yield run


def judge(trainings: list[Training], place: Path) -> None:
    """Fill in verdicts, and the steps at which losses and norms differ."""
    from trainers.judged import cell, rows  # type: ignore[import-not-found]

    from shardlab.report import verdict

    for precision in measuring.PRECISIONS:
        by_reference: dict[Path, list[Training]] = defaultdict(list)
        for training in trainings:
            by_reference[measuring.folder_of(training.case, precision, place)].append(training)
        for folder, together in by_reference.items():
            ended = [each for each in together if (folder / each.folder / "train.json").exists()]
            for training in together:
                if training not in ended:
                    training.verdicts[precision] = told(folder / training.folder / measuring.STOPPED)
            single = measuring.single_of(together[0].case, precision)
            names = ["single", *sorted(path.name for path in folder.glob("twin*")), *(each.folder for each in ended)]
            found = rows(single, folder, names)
            if single.model.experts:  # a token that rounding sends to another expert moves weights by any amount
                found["expert_choices"] = 1
            judged = {row["strategy"]: row for row in verdict.judge(found).to_dict("records")}
            for training in ended:
                row = judged[training.folder]
                training.verdicts[precision] = cell(row)
                if precision == "float32":
                    training.seen = visible(folder / training.folder, folder / "single")


def told(path: Path) -> str:
    """Return what stopped a training, in a few words."""
    lines = [line for line in path.read_text().splitlines() if "Error" in line]
    sentence = re.sub(r"/\S*/", "", lines[-1].partition(": ")[2]) if lines else "it failed"
    return f"stops: {' '.join(sentence.split()[:12])} ..."


def visible(folder: Path, single: Path) -> dict[str, str]:
    """Return the first step, from 1, at which losses or gradient norms are visibly not those of one device."""
    from shardlab.records import metrics

    own, other = (
        {each["step"]: each for each in metrics.read(path / "metrics.jsonl") if each["kind"] == "train"}
        for path in (folder, single)
    )
    pairs = [(number, own[number], other[number]) for number in sorted(own.keys() & other.keys())]
    return {
        "plot of losses": first(number for number, a, b in pairs if apart(a["loss"], b["loss"])),
        "logged losses": first(number for number, a, b in pairs if f"{a['loss']:.5f}" != f"{b['loss']:.5f}"),
        "plot of norms": first(number for number, a, b in pairs if apart(a["grad_norm"], b["grad_norm"])),
    }


def apart(value: float, reference: float) -> bool:
    """True if a plot would show the difference."""
    return not abs(value - reference) <= VISIBLE * abs(reference)


def first(numbers: Iterator[int]) -> str:
    """Return the first of the steps as text."""
    number = next(numbers, None)
    return UNSEEN if number is None else f"step {number + 1}"


def listed(trainings: list[Training]) -> str:
    """Format a Markdown list of the faults: source, first difference, and where the verdict misses it."""
    lines = []
    for training in trainings:
        if training.fault:
            known = training.fault.published
            says = known.says + (f" ({known.note})" if known.note else "")
            missed = ", ".join(each for each in measuring.PRECISIONS if not training.is_unequal(each))
            found = began_at(training.found.get("first"))
            lines.append(f"- {says} ({known.sources}): {found}" + (f"; missed in {missed}" if missed else ""))
    return "\n".join(lines)


def began_at(place: list[Any] | None) -> str:
    """Format the kind of the first difference of two captures, and its step if that is not the first."""
    if not place:
        return "no difference"
    return place[1] if place[0] <= 0 else f"step {place[0] + 1}, {place[1]}"


def counts(trainings: list[Training], minutes: float) -> str:
    """Format a Markdown table of how many faults each comparison sees, and of its false alarms."""
    faulty = [training for training in trainings if training.fault]
    sound = [training for training in trainings if not training.fault]
    sees: dict[str, Callable[[Training], bool]] = {
        "plot of losses (1 %)": lambda each: each.shows("plot of losses"),
        "logged losses (5 digits)": lambda each: each.shows("logged losses"),
        "plot of gradient norms (1 %)": lambda each: each.shows("plot of norms"),
        "verdict in float32": lambda each: each.is_unequal("float32"),
        "verdict in bf16": lambda each: each.is_unequal("bf16"),
        "verdict in float64": lambda each: each.is_unequal("float64"),
        "first steps": lambda each: bool(each.found.get("first")),
        "any verdict, or the first steps": lambda each: each.is_seen,
    }
    lines = [["comparison with one device", f"faults seen, of {len(faulty)}", f"false alarms, of {len(sound)}"]]
    lines += [[name, str(sum(map(see, faulty))), str(sum(map(see, sound)))] for name, see in sees.items()]
    return f"{markdown(lines)}\n\nMeasured in {minutes:.0f} minutes on {len(os.sched_getaffinity(0))} cores."


def elsewhere(of_tests: list[Fault], not_reproduced: list[Published]) -> str:
    """Format a Markdown list of what no small training shows, and what is not reproduced."""
    lines = []
    for fault in of_tests:
        seen_by = ", ".join(f"`{test}`" for test in fault.tests)
        lines.append(f"- {fault.published.says} ({fault.published.sources}): {seen_by}")
    lines += [f"- {known.says} ({known.sources}): {known.note}" for known in not_reproduced]
    return "\n".join(lines)


def markdown(lines: list[list[str]]) -> str:
    """Format a Markdown table; the first line is its head."""
    head, *rows = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
