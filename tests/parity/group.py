"""Many small trainings in one set of ranks, since starting a rank takes seconds."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from common import ROOT
from shardlab import checkpoint, models


@dataclass
class Group:
    """Cases that share one set of ranks, and where their results lie."""

    folder: Path
    data: Path
    jobs: list = field(default_factory=list)

    def add(self, name, run, fault="", resume=None):
        if any(job["output"] == str(self.folder / name) for job in self.jobs):
            return
        weights = self.folder / f"{run.workload}-{run.recipe.dtype}.safetensors"
        if not weights.exists():
            torch.manual_seed(run.seed)
            model = models.build(run.model.name, run.model.args, getattr(torch, run.recipe.dtype))
            checkpoint.save(model.state_dict(), weights)
        (self.folder / name).mkdir()
        self.jobs.append(
            {
                "run": run.model_dump(),
                "data": str(self.data / run.workload),
                "weights": str(weights),
                "output": str(self.folder / name),
                "fault": fault,
                "resume": resume and str(self.folder / resume / "checkpoint"),
            }
        )

    def start(self, ranks):
        """Run all jobs that were added since the last start on that many ranks."""
        jobs, self.jobs = self.jobs, []
        (self.folder / "jobs.json").write_text(json.dumps(jobs))
        starter = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        done = subprocess.run(
            [sys.executable, *starter, str(Path(__file__).with_name("worker.py")), str(self.folder / "jobs.json")],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "scripts")},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-6000:]


def steps(folder):
    """The records of the training steps in a run's metrics."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]
