"""Output of a call on a terminal, and of Ctrl-C. (`script`, of util-linux, makes the terminal.)"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.common import Tree, until
from helpers.documents import without_twins

pytestmark = pytest.mark.skipif(shutil.which("script") is None, reason="util-linux's script is not here")
TRY = ["make", "--old-file=.venv/run", f"BIN={Path(sys.executable).parent}", "try"]
"""The README's trial, without installing an environment."""
CALL = ["snakemake", "--profile", "workflow/profiles/local", "--config", "noise_floor_runs=0"]
CALL += ["strategies=[single]", "workloads=[mlp]"]


def on_terminal(tree: Tree, *call):
    """Start a call on a new terminal; return the process, whose input is the keyboard."""
    words = ["script", "--quiet", "--return", "--command", shlex.join(call), "/dev/null"]
    environment = tree.environment() | {"TERM": "xterm-256color"}
    return subprocess.Popen(
        words, cwd=tree.path, env=environment, text=True, stdin=-1, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def lines(seen):
    """What was written, without colours and the states of the bar."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "\n")
    return [line.strip() for line in plain.splitlines() if line.strip() and "━━" not in line]


def test_a_line_per_run_and_ctrl_c(tree):
    without_twins(tree)
    child = on_terminal(tree, *TRY)
    seen, _ = child.communicate(timeout=300)
    assert child.returncode == 0, seen
    assert lines(seen)[-2:] == [
        "The other run is equal to single: first steps, validation loss and test loss.",
        "Open results/report.html",
    ]
    shown = [line for line in lines(seen) if " x mlp" in line]
    assert sorted(line.split()[:5] for line in shown) == [
        [strategy, "x", "mlp", "loss", "0.518473"] for strategy in ("ddp", "single")
    ]
    child = on_terminal(tree, *CALL, "recipe={epochs: 1000000, max_steps: 1000000}", "--", "all")
    metrics = tree.path / "results/single/mlp/metrics.jsonl"
    until(lambda: len(metrics.read_text().splitlines()) > 200, alive=lambda: child.poll() is None)
    child.stdin.write("\x03")
    child.stdin.flush()
    seen, _ = child.communicate(timeout=60)
    assert child.returncode != 0
    assert "stopped; run the same command again to resume" in lines(seen)
