"""Training scripts: started by hand with the files of examples/, and as a strategy whose ranks srun starts."""

import json
import re

import pytest
import yaml
from safetensors.numpy import load_file

from helpers.common import ROOT
from login import RECIPE, own, snakemake

pytestmark = pytest.mark.timeout(1800)
SIZES = {
    "one_node": ["--gpus-per-node=2", "--cpus-per-task=2"],
    "two_nodes": ["--gpus-per-node=1", "--cpus-per-task=1"],
    "srun": ["--gpus-per-node=2", "--cpus-per-task=1", "--ntasks-per-node=2"],
}
"""Options of sbatch that fit the cluster in a box; everything else is what the files say."""
SUBMIT = ["sbatch", "--parsable", "--wait", "--account=teaching", "--mem=3G"]
STRATEGY = "\nby_srun: {script: mine/train.sh, dp_replicate: -1, launcher: srun}\n"


@pytest.fixture(scope="module")
def ended(base):
    """The project after four trainings at once: the job of each file by its name, and what the workflow's call said."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "docs/your-own.md").read_text(), re.DOTALL)
    script = base.path / "mine/train.sh"
    script.parent.mkdir()
    script.write_text(block[1])
    script.chmod(0o755)
    own(script.parent)
    with (base.path / "config/strategies.yaml").open("a") as file:
        file.write(STRATEGY)
    tests = [f"results/{name}/mlp/test.json" for name in ("single", "by_srun")]
    call = base.start(*snakemake(*tests, config=["nodes=2"]))
    jobs = {name: base.start(*SUBMIT, *words, f"examples/{name}.sbatch") for name, words in SIZES.items()}
    jobs = {name: base.finish(job, check=False).stdout.strip() for name, job in jobs.items()}
    return base, jobs, base.finish(call, check=False).stdout


def losses(path):
    records = map(json.loads, path.read_text().splitlines())
    return [record["loss"] for record in records if record.get("kind", "train") == "train"]


def test_what_the_files_for_sbatch_train_by_hand_is_equal_to_one_device(ended):
    learner, jobs, _ = ended
    single = learner.path / "results/single/mlp"
    for name, job in jobs.items():
        said = (learner.path / f"slurm-{job}.out").read_text()
        folder = learner.path / "results/by_hand" / job
        assert (folder / "model.safetensors").exists(), (name, said)
        assert losses(folder / "metrics.jsonl") == pytest.approx(losses(single / "metrics.jsonl"), rel=1e-6), name
        weights = load_file(folder / "model.safetensors")
        for weight, expected in load_file(single / "model.safetensors").items():
            assert weights[weight] == pytest.approx(expected, rel=1e-4, abs=1e-6), name


def test_a_strategy_whose_ranks_srun_starts_is_equal(ended):
    learner, _, called = ended
    config = {"site": "test", "nodes": 2, "workloads": ["mlp"], "strategies": ["single", "by_srun"]}
    config |= yaml.safe_load(RECIPE.replace("=", ": "))
    words = ["python", "scripts/shardlab", "summarize", "--check", "--config", json.dumps(config)]
    said = learner.run(*words, check=False).stdout
    assert "The other run is equal to single: first steps, validation loss and test loss." in said, called
    assert learner.json("results/by_srun/mlp/train.json")["hosts"] == ["n1", "n1", "n2", "n2"]
