#!/usr/bin/env python3
"""Draw the initial weights of a workload, once, from one seed on one device: every strategy loads them."""

import argparse
from pathlib import Path

import torch

from shardlab import models
from shardlab.errors import run_program
from shardlab.models.weights import save
from shardlab.settings.types import read_run
from shardlab.training import tasks


def main() -> None:
    """Build the model and save its weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of any run of the workload")
    parser.add_argument("--output", type=Path, required=True, help="safetensors file to write")
    args = parser.parse_args()
    run = read_run(args.settings)
    dtype = getattr(torch, run.recipe.dtype)
    model = models.build(run.model, run.task, dtype)
    models.check_plan(run.model, model)
    tasks.check_loss(run, model)
    save(models.initial_weights(run.model, run.task, dtype, run.seed), models.state(model), args.output)
    print(f"{models.parameter_count(model):,} parameters, seed {run.seed}")


if __name__ == "__main__":
    run_program(main)
