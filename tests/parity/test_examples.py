"""Each file in examples/, and each of examples/trainers/ that docs/your-own.md calls equal, trains what the project
trains on one device.
"""

import json

import pytest
from group import steps
from safetensors.torch import load_file

from helpers.common import ROOT, save_initial, tiny_run
from shardlab.train import loop

# Of 12 samples: a batch of 11, and one whose second rank has no sample.
UNEVEN = {"global_batch_size": 11}
ADAMW = {"optimizer": {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.1}, "max_grad_norm": None}
ADAMW |= {"lr_schedule": {"name": "constant"}, "global_batch_size": 9}
CASES = {
    "one_device": (1, "mnist", UNEVEN),
    "data_parallel": (1, "mlp", UNEVEN),
    "ddp": (2, "mnist", UNEVEN),
    "fsdp": (2, "llama2", UNEVEN),
    "model_parallel": (1, "mnist", {}),
    # Micro-batches of 2 rows and of 1 row.
    "pipeline": (2, "llama2", {"global_batch_size": 8}),
    "tensor_parallel": (2, "llama2", {}),
    "fsdp_tp": (4, "llama2", UNEVEN),
    "context_parallel": (2, "llama2", {}),
    "expert_parallel": (2, "moe", UNEVEN),
    # With SGD: Adam's update of a weight divides float32 rounding by a gradient that may be as small.
    "deepspeed_zero": (2, "mlp", UNEVEN | {"dtype": "float32"}),
    "trainers/hf_trainer_equal": (2, "mlp", ADAMW),
    "trainers/lightning_ddp_equal": (2, "mlp", ADAMW),
}
"""Name of a file: its ranks, a workload and changes to its recipe."""
PACKAGES = {"trainers/hf_trainer_equal": ["transformers", "accelerate"], "trainers/lightning_ddp_equal": ["lightning"]}
# Relative differences of losses, of norms, and of the final weights; without float64 as in group.py.
TOLERANCES = {"float64": (1e-10, 1e-10, 1e-10), "float32": (5e-6, 5e-6, 1e-4)}
LONG = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=LONG if ranks > 2 or name in PACKAGES else ()) for name, (ranks, *_) in CASES.items()],
)
def test_example_equals_single(name, server, tiny_data, tmp_path):
    for package in PACKAGES.get(name, []):
        pytest.importorskip(package, reason=f"{name}.py needs {package}, of envs/peers.txt")
    ranks, workload, recipe = CASES[name]
    clipped = {"max_grad_norm": 0.1, "lr_schedule": {"name": "step", "gamma": 0.3}}
    run, data = tiny_run(workload, **{"dtype": "float64"} | clipped | recipe), tiny_data / workload
    settings, initial = tmp_path / "run.json", tmp_path / "initial.safetensors"
    settings.write_text(run.model_dump_json())
    save_initial(run, initial)
    single, example = tmp_path / "single", tmp_path / "example"
    example.mkdir()
    words = ["--data", data, "--run", settings, "--weights", initial, "--output", example]
    server.run(ROOT / f"examples/{name}.py", words, ranks, tmp_path / "log", 300 if name in PACKAGES else 60)
    loop.train(run, data, initial, single, {})

    found = [json.loads(line) for line in (example / "metrics.jsonl").read_text().splitlines()]
    expected = steps(single)
    assert len(expected) == 4
    assert min(step["grad_norm"] for step in expected) > (run.recipe.max_grad_norm or 0), "all of them are clipped"
    of_loss, of_norm, at_end = TOLERANCES[run.recipe.dtype]
    of_loss = 1e-6 if "hf_trainer" in name else of_loss  # Trainer adds up losses in float32
    for key, most in (("step", 0), ("loss", of_loss), ("grad_norm", of_norm)):
        assert [step[key] for step in found] == pytest.approx([step[key] for step in expected], rel=most, abs=0)
    weights, whole = (load_file(folder / "model.safetensors") for folder in (example, single))
    assert weights.keys() == whole.keys()
    for key, value in whole.items():
        assert (weights[key].dtype, weights[key].shape) == (value.dtype, value.shape)
        assert (weights[key] - value).abs().max() <= at_end * value.abs().max(), key


def test_every_example_has_a_case():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"common"}
    assert files == {name for name in CASES if "/" not in name}
