"""What the test layers share: tiny runs, and a copy of the tree to work in."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.settings import load, resolve

ROOT = Path(__file__).resolve().parents[2]
HARD_NAME = """it's a "tree" of $HOME"""
"""Of a folder: shells take it apart if it is not quoted."""

TINY = {
    "mlp": {"rows": 16},
    "mnist": {"rows": 16},
    "xsum": {"rows": 16},
    "vit": {"rows": 16},
    "llama2": {"characters": 2_000, "sequence_length": 32},
    "moe": {"characters": 2_000, "sequence_length": 32},
    # Two or three documents a row, whose length context parallelism has to fill up.
    "instruct": {"rows": 44, "sequence_length": 62, "document_tokens": 28},
}
"""Data options that leave 12 training samples or a little more, so that small cases take milliseconds."""


def tiny_run(workload, strategy="single", ranks=2, **recipe):
    """A run over the tiny data set of a workload; 5 samples per step, which no number of ranks divides.

    Four steps: a last batch of an epoch that is smaller than the others, and the first step of the next epoch.
    """
    recipe = {"global_batch_size": 5, "epochs": 3, "max_steps": 4, "keep_best": False} | recipe
    config = load.config({"recipe": recipe, "ranks_per_node": ranks})
    small = load.workload(workload)
    if workload == "xsum":  # of encoder and decoder each one layer, where the others have two
        size = small.sizes["small"]
        size = size.model_copy(update={"model": size.model | {"layers": 1}})
        small = small.model_copy(update={"sizes": {"small": size}})
    with mock.patch.object(load, "workload", return_value=small):
        run = resolve.run(config, strategy, workload)
    options = run.data.options | TINY[workload]
    return run.model_copy(update={"data": run.data.model_copy(update={"options": options})})


def with_weights(run):
    """The model of a run with its initial weights."""
    from shardlab import models  # torch: not for the tests of a login node

    weights = initial_weights(run)
    model = models.construct(run.model, run.task).to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    return model


def build(run):
    """The model of a run without weights."""
    import torch

    from shardlab import models

    return models.build(run.model, run.task, getattr(torch, run.recipe.dtype))


def write_tiny_data(folder):
    """Write the tiny prepared data set of every workload into a folder, each under the workload's name."""
    for workload in TINY:
        data = tiny_run(workload).data
        store.write(folder / workload, data, *encode(data, data_sets.read(data, folder)))


def initial_weights(run):
    """Name to tensor."""
    import torch

    from shardlab import models

    return dict(models.initial_weights(run.model, run.task, getattr(torch, run.recipe.dtype), run.seed))


def save_initial(run, path):
    """Write the initial weights of a run."""
    from shardlab import models
    from shardlab.models.weights import save

    save(initial_weights(run).items(), models.state(build(run)), path)


def until(ready, seconds=90, alive=lambda: True):
    """Wait for a condition, while another holds; files that are not there yet make it false."""
    end = time.monotonic() + seconds
    while True:
        with suppress(OSError, IndexError):
            if ready():
                return
        assert alive()
        assert time.monotonic() < end
        time.sleep(0.05)


def program(path, text):
    """Write a program of the shell; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@dataclass(frozen=True)
class Tree:
    """A copy of the project's files, in which nothing has been made yet."""

    path: Path

    def start(self, *command, **environment):
        """Start a command there, without its output; returns the process."""
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=self.environment() | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def environment(self):
        """With the tests' Python first on the PATH; a make that started the tests is none of a call's business."""
        own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        return own | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command, check=True, timeout=600, **environment):
        """Run a command there; returns it with its output."""
        done = subprocess.run(
            command,
            cwd=self.path,
            env=self.environment() | environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
        assert not check or done.returncode == 0, done.stdout
        return done

    def snakemake(self, *arguments, profile="workflow/profiles/local", **options):
        """Run snakemake there."""
        return self.run("snakemake", "--profile", profile, *arguments, **options)

    def json(self, path):
        """Content of a JSON file there."""
        return json.loads((self.path / path).read_text())
