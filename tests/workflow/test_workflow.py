"""Calls of Snakemake in a fresh copy of the project."""

import fcntl
import json
import re
import sys

import pandas as pd

from helpers.common import ROOT

CALLS = {
    "a key": ["--profile", "workflow/profiles/local", "--config", "worklods=[mlp]", "--", "all"],
    "a strategy": ["--profile", "workflow/profiles/local", "results/fsdpp/mlp.done"],
    "no profile": ["-n", "all"],
    "slurm": ["--profile", "workflow/profiles/slurm", "-n", "--config", "site=engaging", "--", "all"],
    "no slurm": ["--profile", "workflow/profiles/slurm", "-n", "all"],
}
MISTAKES = {
    "a key": "unknown key `worklods`; did you mean `workloads`?",
    "a strategy": "there is no strategy 'fsdpp'; did you mean fsdp?",
    "no slurm": "site local has no `slurm:` section",
    "twice": "config/config.yaml is not YAML: the key `seed` is duplicated",
}
"""Call: words of the sentence that ends it; tests/unit/test_bad_input.py has the others."""


def test_calls_list_their_jobs_or_end_with_a_sentence_before_any(make_tree, tmp_path):
    """In a copy of the project; one of them in another copy, with a key of the configuration twice."""
    tree, twice = make_tree(tmp_path / "tree"), make_tree(tmp_path / "twice")
    with (twice.path / "config/config.yaml").open("a") as file:
        file.write("seed: 2\n")
    there = ["--snakefile", f"{twice.path}/Snakefile", "--directory", str(twice.path)]
    calls = CALLS | {"twice": [*there, "-n", "all"]}
    typed = str(ROOT / "tests/helpers/typed.py")
    said = tree.run(sys.executable, typed, json.dumps([*calls.values()]), "call").stdout
    found = dict(zip(calls, json.loads(said.splitlines()[-1]), strict=True))
    for name, words in MISTAKES.items():
        status, output = found[name]
        assert words in str(status), "Python's exit prints it, with status 1"
        assert "Traceback" not in output
    assert not (tree.path / "data").exists()
    assert [path.name for path in (tree.path / "results").iterdir()] == ["README.md"]
    listed = found["slurm"][1]
    assert re.search(r"^train +62$", listed, re.MULTILINE)
    assert "Training llama2 under fsdp_tp" in listed
    listed = found["no profile"][1]
    assert re.search(r"^total +274$", listed, re.MULTILINE)
    assert "discouraged" not in listed


def test_a_run_that_fails_leaves_the_others_and_the_table_says_so(tree):
    """One whose folder is another process's, and one whose loss is not finite."""
    folder = tree.path / "results/ddp/mlp"
    folder.mkdir(parents=True)
    settings = ["--config", "strategies=[single,ddp]", "recipe={max_steps: 9}", "noise_floor_runs=0"]
    settings.append("site_settings={stop_seconds: 1}")
    diverging = "mlp@learning_rate=1000000"
    with (folder / ".lock").open("w") as lock:
        lock.write("process 1 on here")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = tree.snakemake(*settings, f"workloads=[mlp,{diverging}]", "--", "all", check=False)
    assert done.returncode != 0
    assert "is being trained by process 1 on here" in done.stdout
    assert tree.json("results/single/mlp/test.json")["samples"] == 102
    assert "- ddp x mlp: missing" in (tree.path / "results/summary.md").read_text()
    assert re.search(
        r"error: the (loss|gradient norm) of step \d is (nan|inf); training stopped and no weights", done.stdout
    )
    folder = tree.path / "results/ddp" / diverging
    left = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert left == [".lock", "001.log", "attempts.json", "metrics.jsonl", "resolve.log", "run.json", "train.log"]

    # Then variants, their table, and a further value that trains only itself.
    settings = ["--config", "strategies=[single]", "workloads=[mlp]", "recipe={max_steps: 3}", "noise_floor_runs=0"]
    tree.snakemake(*settings, "sweep={learning_rate: [0.01, 0.1], seed: [1, 2]}", "--", "all")
    table = pd.read_csv(tree.path / "results/sweep.csv")
    assert table[["learning_rate", "runs", "done"]].to_numpy().tolist() == [[0.01, 2, 2], [0.1, 2, 2]]
    further = tree.snakemake(
        "-n", *settings, "sweep={learning_rate: [0.01, 0.03, 0.1], seed: [1, 2]}", "--", "all"
    ).stdout
    assert re.search(r"^train +2$", further, re.MULTILINE)
    assert re.search(r"^init +\d", further, re.MULTILINE) is None
