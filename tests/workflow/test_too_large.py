"""Models that one device cannot hold: init in pieces, evaluation under the run's own strategy."""

import json
import os
import re
import subprocess
import sys

import pandas as pd
import pytest

from helpers.common import ROOT
from shardlab.settings import load, resolve
from shardlab.settings.types import read_run
from shardlab.train.evaluation import evaluate_whole

pytestmark = pytest.mark.long


def test_initial_weights_are_drawn_with_less_memory_than_they_take(tmp_path):
    run = resolve.run(load.config({}), "fsdp", "llama2")
    args = run.model.args | {"dim": 1024, "hidden": 4096, "layers": 18, "heads": 16, "kv_heads": 16}
    model = run.model.model_copy(update={"args": args, "segments": args["layers"] + 2})
    run = run.model_copy(update={"model": model})
    (tmp_path / "run.json").write_text(json.dumps(run.model_dump()))
    # The peak of this program alone: what wait4 says includes the memory of the process that started it.
    program = "from shardlab.cli import init; init.main(); print(open('/proc/self/status').read())"
    command = [sys.executable, "-c", program, "--settings", tmp_path / "run.json", "--output", tmp_path / "weights"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(list(map(str, command)), env=environment, text=True, capture_output=True, check=True)
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) * 1024
    size = (tmp_path / "weights").stat().st_size
    assert size > 1.2e9
    assert peak < size / 2, "PyTorch itself takes some 300 MB"


def test_evaluation_under_the_own_strategy_goes_through_the_workflow(tree):
    config = ["--config", "workloads=[llama2]", "strategies=[fsdp]", "recipe={max_steps: 2, evaluation: sharded}", "--"]
    tree.snakemake(*config, "all")
    sharded = tree.json("results/fsdp/llama2/test.json")
    folder = tree.path / "results/fsdp/llama2"
    data = tree.path / "data/prepared/package_source"
    whole = evaluate_whole(read_run(folder / "run.json"), data, folder / "model.safetensors")
    assert sharded["loss"] == pytest.approx(whole.loss, rel=1e-6)
    assert sharded["metric_value"] == pytest.approx(whole.metric_value, rel=1e-5)
    assert (sharded["evaluation"], sharded["untrained_loss"]) == ("sharded", None)
    assert (whole.evaluation, sharded["samples"]) == ("whole", whole.samples)
    assert (pd.read_csv(tree.path / "results/summary.csv").status == "done").all()
    assert tree.json("results/init/llama2.json")["loss"] is None, "the initial weights would be whole on one device"
