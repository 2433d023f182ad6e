"""A sweep as a user types it: variants, their table, and a further value that trains only itself."""

import re

import pandas as pd

CONFIG = ["--config", "workloads=[mlp]", "strategies=[single]", "recipe={max_steps: 3}", "noise_floor_runs=0"]


def test_a_sweep_and_a_further_value(tree):
    done = tree.snakemake(*CONFIG, "sweep={learning_rate: [0.01, 0.1], seed: [1, 2]}", "--", "all")
    assert done.returncode == 0
    table = pd.read_csv(tree.path / "results/sweep.csv")
    assert table[["learning_rate", "runs", "done"]].to_numpy().tolist() == [[0.01, 2, 2], [0.1, 2, 2]]
    assert table.validation_std.gt(0).all()
    assert table.best.sum() == 1
    assert (tree.path / "results/init/mlp@seed=2.safetensors").exists()
    assert "the lowest mean validation loss" in (tree.path / "results/report.html").read_text()
    # Runs of the same cost are planned once, and each has its plan.
    assert "mlp@learning_rate=0.01@seed=1, and 3 variants" in (tree.path / "results/plan.md").read_text()
    assert len(list(tree.path.glob("results/plans/single/*/plan.json"))) == 4
    further = tree.snakemake(
        "-n", *CONFIG, "sweep={learning_rate: [0.01, 0.03, 0.1], seed: [1, 2]}", "--", "all"
    ).stdout
    assert re.search(r"^train +2$", further, re.MULTILINE)
    assert re.search(r"^init +\d", further, re.MULTILINE) is None
