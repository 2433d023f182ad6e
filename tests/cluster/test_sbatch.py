"""Training scripts that are started by hand, with the files of examples/."""

import json

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.timeout(1800)
SIZES = {
    "one_node": ["--gpus-per-node=2", "--cpus-per-task=2"],
    "two_nodes": ["--gpus-per-node=1", "--cpus-per-task=1"],
    "srun": ["--gpus-per-node=2", "--cpus-per-task=1", "--ntasks-per-node=2"],
}
"""Options of sbatch that fit the cluster in a box; everything else is what the files say."""
SUBMIT = ["sbatch", "--parsable", "--wait", "--account=teaching", "--mem=3G"]


def losses(path):
    records = map(json.loads, path.read_text().splitlines())
    return [record["loss"] for record in records if record.get("kind", "train") == "train"]


def test_what_the_files_for_sbatch_train_by_hand_is_equal_to_one_device(base):
    """All three at once."""
    single = base.path / "results/single/mlp"
    jobs = {name: base.start(*SUBMIT, *words, f"examples/{name}.sbatch") for name, words in SIZES.items()}
    for name, started in jobs.items():
        job = base.finish(started, check=False).stdout.strip()
        said = (base.path / f"slurm-{job}.out").read_text()
        folder = base.path / "results/by_hand" / job
        assert (folder / "model.safetensors").exists(), (name, said)
        assert losses(folder / "metrics.jsonl") == pytest.approx(losses(single / "metrics.jsonl"), rel=1e-6), name
        weights = load_file(folder / "model.safetensors")
        for weight, expected in load_file(single / "model.safetensors").items():
            assert weights[weight] == pytest.approx(expected, rel=1e-4, abs=1e-6), name
