"""Models that one device cannot hold: init in pieces. Evaluation under the own strategy: tests/parity."""

import json
import os
import re
import subprocess
import sys

import pytest

from helpers.common import ROOT
from shardlab.settings import load, resolve


@pytest.mark.long
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
