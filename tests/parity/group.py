"""Many small trainings in one set of ranks, because starting a rank takes seconds."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from helpers.common import ROOT, save_initial
from shardlab.errors import UserError
from shardlab.records import manifest, metrics
from shardlab.records.expert_choices import count_flips
from shardlab.train import evaluation
from shardlab.train.perturbed import move


@dataclass
class Group:
    """Trainings from the same weights, and where their results lie."""

    server: "Server"
    folder: Path
    data: Path

    def train(self, runs):
        """Train each (name, run, name of one that it resumes or None, name of one whose weights it only evaluates): in
        one set of ranks those that have as many ranks and the same engine.
        """
        groups = defaultdict(dict)
        for name, run, *more in runs:
            groups[run.world_size, run.engine][name] = run, *more
        for (ranks, _), jobs in groups.items():
            self.server.work_off([self._job(name, *each) for name, each in jobs.items()], self.folder, ranks)

    def _job(self, name, run, resume=None, evaluate=None):
        kind = "-adapter" if run.model.adapter else ""
        weights = self.folder / f"{run.workload}-{run.recipe.dtype}{kind}.safetensors"
        if not weights.exists():
            save_initial(run, weights)
        resume = resume and newest(self.folder / resume)
        evaluate = evaluate and self.folder / evaluate / "model.safetensors"
        return job(run, self.data / run.workload, weights, self.folder / name, resume=resume, evaluate=evaluate)


def newest(folder):
    """The checkpoint of a run that will have stopped after two steps."""
    return manifest.place(folder, 2)


def job(run, data, weights, output, resume=None, evaluate=None, capture=False, like=None):
    """What worker.py takes; makes the folder ``output``. ``capture``: the first steps, ``like``: see capture.py."""
    output.mkdir()
    paths = {"data": data, "weights": weights, "output": output, "resume": resume, "evaluate": evaluate}
    runs = {"run": run.model_dump(), "like": like and like.model_dump()}
    paths = {name: path and str(path) for name, path in paths.items()}
    return runs | {"capture": capture} | paths


def reference_captures(run, like, data, folder):
    """Jobs that capture a run on one device and its twin; ``like``: the run that will be diagnosed."""
    weights, moved = folder / "initial.safetensors", folder / "moved.safetensors"
    save_initial(run, weights)
    move(run, weights, 0, moved)
    single = job(run, data, weights, folder / "single", capture=True, like=like)
    return [single, job(run, data, moved, folder / "twin", capture=True)]


def start(environment):
    """The process of ranks.py, with these variables besides. `make mutants` forks it instead."""
    paths = [ROOT / "scripts", ROOT / "tests", *filter(None, [environment.get("PYTHONPATH")])]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ranks.py"))],
        env=os.environ | threads | environment | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


class Server:
    """The process that ranks are forked from (ranks.py); one for all groups of a session."""

    def __init__(self, environment=None):
        """``environment``: what its ranks have in theirs besides."""
        self.environment = environment or {}
        self.process = start(self.environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def work_off(self, jobs, folder, ranks, group=False, fresh=False):
        """Run jobs on that many ranks, with files in a folder. ``group``: in a process group, also for one rank.

        ``fresh``: in new processes, as CUDA requires, instead of forks.
        """
        (folder / "jobs.json").write_text(json.dumps(jobs))
        self._ask(folder / f"{ranks}.log", ranks, group or ranks > 1, jobs=str(folder / "jobs.json"), fresh=fresh)

    def run(self, script, words, ranks, log, seconds=60):
        """Run a script on that many ranks, 1: as one process without any; after ``seconds`` they wait for ever."""
        self._ask(log, ranks, ranks > 1, script=[str(script), *map(str, words)], seconds=seconds)

    def _ask(self, log, ranks, group, **work):
        """Wait for what is asked of the process; the log is the message of a failure."""
        try:
            self.process.stdin.write(json.dumps(work | {"ranks": ranks, "log": str(log), "group": group}) + "\n")
            self.process.stdin.flush()
            # Other lines are what imports print.
            status = next((line for line in self.process.stdout if line.strip().lstrip("-").isdigit()), "1")
        except BaseException:
            # The time of a test is over. What these ranks would still say is no answer to the next request.
            self.stop()
            self.process = start(self.environment)
            raise
        if int(status):
            raise UserError(f"a training failed:\n{log.read_text()[-6000:]}")

    def stop(self):
        """End the process and, if it was interrupted, its ranks."""
        self.process.terminate()
        self.process.wait()


EVALUATED = {}
"""Folder of a training on one device: its evaluation."""
FLOOR = 1e-4
"""A parameter's gradients are compared relative to their largest, or to this part of the model's largest: those of a
bias in front of a softmax are 0, and nothing but rounding.
"""


def differences(actual, single, run, data):
    """Largest relative differences of two trainings: step-0 gradients, loss and norm of each step, test loss,
    and the part of the experts' choices that differ.

    Gradients are compared relative to the model's largest (``gradient``), and to each parameter's own (``parameter``).
    ``run`` is the one on one device, ``data`` the folder of its prepared data set. What is not a number stays none.
    """
    gradients, expected = (load_file(folder / "gradients.safetensors") for folder in (actual, single))
    pairs = list(zip(steps(actual), steps(single), strict=True))
    assert all(actual["samples"] == reference["samples"] for actual, reference in pairs)
    test, expected_test = (
        evaluation.evaluate_whole(run, data, actual / "model.safetensors"),
        of_reference(run, data, single),
    )
    own, reference = test.expert_choices, expected_test.expert_choices
    flips, choices = count_flips(own, reference) if own else (0, 1)
    average = {}
    if run.recipe.ema_decay is not None:
        ours, whole = (evaluation.evaluate_whole(run, data, each / "ema.safetensors") for each in (actual, single))
        average = {"average": worst([ours.loss / whole.loss - 1])}
    return of_gradients(gradients, expected) | {
        "loss": worst(actual["loss"] / reference["loss"] - 1 for actual, reference in pairs),
        "norm": worst(actual["grad_norm"] / reference["grad_norm"] - 1 for actual, reference in pairs),
        "test": worst([test.loss / expected_test.loss - 1]),
        "flips": flips / choices,
        **average,
    }


def of_reference(run, data, folder):
    """The evaluation of a training on one device, computed once for all that are compared with it."""
    if folder not in EVALUATED:
        EVALUATED[folder] = evaluation.evaluate_whole(run, data, folder / "model.safetensors")
    return EVALUATED[folder]


def of_gradients(gradients, expected):
    """Largest differences of gradients by name: relative to the largest of all, and of each parameter."""
    assert gradients.keys() == expected.keys()
    sizes = {name: float(value.abs().max()) for name, value in expected.items()}
    apart = {name: float((gradients[name] - value).abs().max()) for name, value in expected.items()}
    scale = worst(sizes.values())
    own = [apart[name] / max(size, FLOOR * scale) for name, size in sizes.items()]
    return {"gradient": worst(apart.values()) / scale, "parameter": worst(own)}


def worst(values):
    """The largest absolute value; nan if any value is nan, which max() may miss."""
    return float(np.abs([*values]).max())


def outside(found, *, native):
    """The differences outside of their tolerances: 1e-10, or without float64 5e-6 per step and 1e-4 at the end.

    Without float64 a parameter's small gradients are sums of large ones that cancel out: 1e-3 of their largest.
    """
    tolerances = dict.fromkeys(found, 1e-10 if native else 5e-6)
    if not native:
        tolerances |= {"test": 1e-4, "average": 1e-4, "parameter": 1e-3, "flips": 1e-2}
    return {name: value for name, value in found.items() if not value <= tolerances[name]}


def steps(folder):
    """The records of the training steps in a run's metrics."""
    return [record for record in metrics.read(folder / "metrics.jsonl") if record["kind"] == "train"]


def without_exchanges(traffic):
    """The bytes of all axes but ep, and those of ep."""
    rows = sum(entry["bytes"] for entry in traffic if entry["axis"] == "ep")
    return sum(entry["bytes"] for entry in traffic) - rows, rows
