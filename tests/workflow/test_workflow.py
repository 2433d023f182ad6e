"""Calls of Snakemake in a fresh copy of the project."""

import fcntl
import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from helpers.common import ROOT, Tree, until
from shardlab.measure.collectives import COLLECTIVES

MISTAKES = {
    "unknown key `worklods`; did you mean `workloads`?": ["--config", "worklods=[mlp]", "--", "all"],
    "there is no strategy 'fsdpp'; did you mean fsdp?": ["results/fsdpp/mlp.done"],
}
"""Words of the sentence that ends a call, and its arguments; tests/unit/test_call_runs.py has the others."""
RUNS = ["fsdp/mlp", "tp/mnist"]
CALLS = {words: ["--profile", "workflow/profiles/local", *arguments] for words, arguments in MISTAKES.items()}
CALLS |= {
    "slurm": ["--profile", "workflow/profiles/slurm", "-n", "--config", "site=engaging", "--", "all"],
    "no slurm": ["--profile", "workflow/profiles/slurm", "-n", "all"],
    "evaluate": ["-n", "-p", *(f"results/{run}/test.json" for run in RUNS)],
    "compare": ["-n", "-p", "--config", "workloads=[mlp,mnist]", "strategies=[single,ddp,fsdp]", "--", "all"],
}


@pytest.fixture(scope="module")
def called(make_tree, tmp_path_factory):
    """A copy of the project, and how each call ended there (null: well), with its output."""
    tree = make_tree(tmp_path_factory.mktemp("calls"))
    said = tree.run(sys.executable, str(ROOT / "tests/helpers/calls.py"), json.dumps([*CALLS.values()])).stdout
    return tree, dict(zip(CALLS, json.loads(said.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_end_the_call_before_any_job(called, words):
    tree, calls = called
    status, output = calls[words]
    assert words in str(status), "Python's exit prints it, with status 1"
    assert "Traceback" not in output
    assert not (tree.path / "data").exists()
    assert [path.name for path in (tree.path / "results").iterdir()] == ["README.md"]


def test_slurm_profile_lists_the_jobs_without_slurm(called):
    assert "site local has no `slurm:` section" in str(called[1]["no slurm"][0])
    _, listed = called[1]["slurm"]
    assert re.search(r"^train +62$", listed, re.MULTILINE)
    assert "Training llama2 under fsdp_tp" in listed


def test_each_run_is_evaluated_by_its_own_weights(called):
    words = r"shardlab launch evaluate --settings results/(\S+)/run.json .* --weights results/(\S+)/model"
    assert sorted(re.findall(words, called[1]["evaluate"][1])) == [(run, run) for run in RUNS]


def test_each_run_s_weights_are_compared_with_those_of_its_workload_s_single(called):
    words = r"--weights results/(\S+)/model.safetensors --single results/single/(\S+)/model.safetensors --initial "
    words = rf"shardlab launch compare --settings results/(\S+)/run.json --image= {words}results/init/(\S+).safetensors"
    runs = [f"{strategy}/{workload}" for strategy in ("ddp", "fsdp") for workload in ("mlp", "mnist")]
    expected = sorted((run, run, *[run.partition("/")[2]] * 2) for run in runs)
    assert sorted(re.findall(words, called[1]["compare"][1])) == expected


def test_dry_run_needs_no_profile(tree):
    """Nor is a file of the folder taken for a module of Python's, as the Makefile calls it."""
    (tree.path / "random.py").write_text("raise ImportError('this is not random')\n")
    listed = tree.run("python", "-P", "-m", "snakemake", "-n", "all").stdout
    assert re.search(r"^total +274$", listed, re.MULTILINE)
    assert "discouraged" not in listed
    assert ".venv/bin/python -P -m snakemake" in tree.run("make", "-n", "-o", ".venv/run", "run").stdout


def test_no_rule_needs_a_certain_workload_or_strategy(tree):
    (tree.path / "config/workloads/mlp.yaml").unlink()
    strategies = tree.path / "config/strategies.yaml"
    strategies.write_text(strategies.read_text().replace("\nddp: {dp_replicate: -1}\n", "\n"))
    targets = ["all", "preflight", "results/collectives/local.csv", "results/plan.md"]
    config = ["--config", "workloads=[mnist]", "strategies=[single,fsdp]", "--"]
    listed = tree.run("snakemake", "-n", *config, *targets).stdout
    assert re.search(r"^resolve_site +1$", listed, re.MULTILINE)
    assert not re.search(r"mlp|ddp", listed)


def test_every_value_in_the_lines_of_rules_is_quoted():
    """The lines are those after `shell` or `launch`; the braces in f-strings are doubled."""
    texts = [path.read_text() for path in (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk"))]
    lines = [block for text in texts for block in re.findall(r"^ +shell[:(]\n((?: +f?\".*\n)+)", text, re.M)]
    lines += [block for text in texts for block in re.findall(r"^ +launch\((.*?)\)\n", text, re.M | re.S)]
    lines += re.findall(r"WRITE_SETTINGS = \((.*?)^\)", (ROOT / "workflow/rules/common.smk").read_text(), re.M | re.S)
    assert len(lines) > 20
    for block in lines:
        quoted = {"WRITE_SETTINGS", "SHARDLAB"} | set(re.findall(r"{+([^{}]+:q)}", block))
        assert set(re.findall(r"{+([^{}]+)}", block)) <= quoted


@pytest.mark.long
def test_a_folder_s_name_is_no_code(make_tree, tmp_path):
    """Of the project and of the folder that a call works in; shells and format strings take them apart."""
    name = "a {x} $(touch injected) `touch injected` 'b' \"c\""
    project, tree = make_tree(tmp_path / f"project {name}").path, Tree(tmp_path / f"work {name}")
    (tree.path / "config").mkdir(parents=True)
    shutil.copy(project / "config/config.yaml", tree.path / "config")
    call = ["snakemake", "--snakefile", project / "Snakefile", "--profile", project / "workflow/profiles/local"]
    made = ["results/init/mlp/run.json", "data/prepared/pairs/dataset.json"]
    tree.run(*call, "--", *made)
    assert all((tree.path / name).exists() for name in made)
    assert not [*tmp_path.rglob("injected")]


def test_a_configuration_file_is_checked_before_snakemake_reads_it(tree):
    with (tree.path / "config/config.yaml").open("a") as file:
        file.write("seed: 2\n")
    done = tree.run("snakemake", "-n", "all", check=False)
    assert done.returncode != 0
    assert "config/config.yaml is not YAML: the key `seed` is duplicated" in done.stdout
    assert "Traceback" not in done.stdout


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
    (log,) = folder.rglob("001.log")
    assert log.read_text().count("Applied DDP, mesh dp_replicate=2\n") == 1, "of rank 0 alone"
    left = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert left == [".lock", "001.log", "attempts.json", "metrics.jsonl", "resolve.log", "run.json", "train.log"]
    mark = tree.path / "results/export/ddp/llama2/.snakemake_timestamp"
    mark.parent.mkdir(parents=True)
    mark.touch()
    tree.snakemake(*settings, "workloads=[mlp]", "--", "all")
    assert not mark.exists(), "an exported model's folder has the model's files alone"
    assert "Not complete" not in (tree.path / "results/summary.md").read_text()


@pytest.mark.long  # tests/unit/test_snakemake_lock.py has the lock itself
def test_two_calls_at_once_train_each_run_once(tree):
    """The second one waits; a dry run does not."""
    call = ["--config", "recipe={max_steps: 3}", "site_settings={setup_commands: [sleep 12]}", "--"]
    call.append("results/single/mlp.done")
    with (tree.path / "second.log").open("w") as log:
        one = tree.start("snakemake", "--profile", "workflow/profiles/local", *call)
        until(lambda: (tree.path / ".snakemake/driver.lock").exists())
        other = subprocess.Popen(
            ["snakemake", "--profile", "workflow/profiles/local", *call],
            cwd=tree.path,
            env=tree.environment(),
            stdout=log,
            stderr=log,
        )
        until(lambda: "This call waits until that one has ended" in (tree.path / "second.log").read_text())
        assert "results/single/mlp.done" in tree.snakemake("-n", *call).stdout
        assert (one.poll(), other.poll()) == (None, None)
        assert (one.wait(120), other.wait(60)) == (0, 0)
    assert "Nothing to be done" in (tree.path / "second.log").read_text()
    assert len(tree.json("results/single/mlp/train.json")["attempts"]) == 1


@pytest.mark.long
def test_a_call_that_was_to_make_no_table_prints_none_if_it_fails(tree):
    """As the Snakemake of a job of preflight does."""
    failed = tree.snakemake("--config", "site=test", "container=off", "--", "preflight_nodes", check=False)
    assert failed.returncode != 0
    assert "wrong: " in failed.stdout
    assert "missing" not in failed.stdout.replace("Missing output files", "")
    assert not (tree.path / "results/report.html").exists()


@pytest.mark.long
def test_a_parallel_strategy_also_runs_on_one_rank(tree):
    runs = [f"results/{strategy}/mlp" for strategy in ("ddp", "fsdp", "zero2")]
    tree.snakemake("--config", "ranks_per_node=1", "recipe={max_steps: 3}", "--", *(f"{run}.done" for run in runs))
    assert [tree.json(f"{run}/train.json")["world_size"] for run in runs] == [1, 1, 1]


@pytest.mark.long
def test_collectives_are_measured(tree):
    tree.snakemake("results/collectives/local.csv")
    table = pd.read_csv(tree.path / "results/collectives/local.csv")
    assert set(table.collective) == set(COLLECTIVES)
    assert (table.groupby("collective").bytes.nunique() == 8).all()
    assert (table.wrong_ranks == 0).all()
    rings = table[table.collective == "all_gather"]
    assert (rings.bus_gb_per_second - rings.algorithm_gb_per_second / 2).abs().max() < 1e-12
