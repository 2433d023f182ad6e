"""Many small trainings in one set of ranks, since starting a rank takes seconds."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file

from helpers.common import ROOT, save_initial
from shardlab.training import evaluation, metrics


@dataclass
class Group:
    """Cases that share one set of ranks, and where their results lie."""

    server: "Server"
    folder: Path
    data: Path
    jobs: list = field(default_factory=list)

    def add(self, name, run, fault="", resume=None, evaluate=None):
        """A training; with ``resume`` one that goes on; with ``evaluate`` the evaluation of another's weights."""
        if any(job["output"] == str(self.folder / name) for job in self.jobs):
            return
        weights = self.folder / f"{run.workload}-{run.recipe.dtype}.safetensors"
        if not weights.exists():
            save_initial(run, weights)
        (self.folder / name).mkdir()
        self.jobs.append(
            {
                "run": run.model_dump(),
                "data": str(self.data / run.workload),
                "weights": str(weights),
                "output": str(self.folder / name),
                "fault": fault,
                "resume": resume and str(self.folder / resume / "checkpoint"),
                "evaluate": evaluate and str(self.folder / evaluate / "model.safetensors"),
            }
        )

    def start(self, ranks):
        """Run all jobs that were added since the last start on that many ranks."""
        jobs, self.jobs = self.jobs, []
        (self.folder / "jobs.json").write_text(json.dumps(jobs))
        log = self.folder / f"{ranks}.log"
        assert self.server.run(ranks, self.folder / "jobs.json", log) == 0, log.read_text()[-6000:]


class Server:
    """The process that ranks are forked from (ranks.py); one for all groups of a session."""

    def __init__(self):
        paths = [ROOT / "scripts", ROOT / "tests"]
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ranks.py"))],
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, ranks, jobs, log):
        """Work off a file of jobs on that many ranks; returns the status."""
        self.process.stdin.write(json.dumps({"ranks": ranks, "jobs": str(jobs), "log": str(log)}) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.strip().lstrip("-").isdigit():
                return int(line)
        return self.process.wait()

    def stop(self):
        """End the process and, if it was interrupted at work, its ranks."""
        self.process.terminate()
        self.process.wait()


def differences(mine, single, run, data):
    """Largest relative differences of two trainings: step-0 gradients, loss and norm of each step, test loss.

    ``run`` is the one on one device, ``data`` the folder of its prepared data set.
    """
    gradients, expected = (load_file(folder / "gradients.safetensors") for folder in (mine, single))
    assert gradients.keys() == expected.keys()
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    pairs = list(zip(steps(mine), steps(single), strict=True))
    assert all(mine["samples"] == theirs["samples"] for mine, theirs in pairs)
    losses = [evaluation.evaluate(run, data, folder / "model.safetensors").loss for folder in (mine, single)]
    return {
        "gradient": max(float((gradients[name] - expected[name]).abs().max()) for name in expected) / scale,
        "loss": max(abs(mine["loss"] / theirs["loss"] - 1) for mine, theirs in pairs),
        "norm": max(abs(mine["grad_norm"] / theirs["grad_norm"] - 1) for mine, theirs in pairs),
        "test": abs(losses[0] / losses[1] - 1),
    }


def outside(found, *, native):
    """The differences outside of their tolerances: 1e-10, or without float64 5e-6 per step and 1e-4 at the end."""
    tolerance = 1e-10 if native else 5e-6
    tolerances = dict.fromkeys(found, tolerance) | {"test": tolerance if native else 1e-4}
    return {name: value for name, value in found.items() if not value <= tolerances[name]}


def steps(folder):
    """The records of the training steps in a run's metrics."""
    return [record for record in metrics.read(folder / "metrics.jsonl") if record["kind"] == "train"]
