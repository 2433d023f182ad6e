"""The files of examples/trainers/ that docs/your-own.md calls equal to one device are."""

import json

import pytest
import script_rank
import torch
from group import steps
from safetensors.torch import load_file
from test_examples import Case

from helpers.common import ROOT
from shardlab.train import loop

FOLDER = ROOT / "examples/trainers"
PACKAGES = {"hf_trainer": ["transformers", "accelerate"], "lightning_ddp": ["lightning"]}
ADAMW = {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.1}

SECONDS = 300
"""After which the ranks of a trainer wait for one another for ever; its packages take seconds to import."""


def trained(name, workload, folder, data, **recipe):
    """Train with a file of examples/trainers on two ranks."""
    for package in PACKAGES[name.removesuffix("_equal")]:
        pytest.importorskip(package, reason=f"{name}.py needs {package}, of envs/peers.txt")
    recipe = {"optimizer": ADAMW, "max_grad_norm": None, "lr_schedule": {"name": "constant"}} | recipe
    case = Case(workload, folder, data, **recipe)
    script_rank.run(FOLDER / f"{name}.py", case.arguments, 2, folder / "log", SECONDS)
    return case


UNEVEN = {"global_batch_size": 9}
"""Of 12 samples, the ranks have 5 and 4, then 2 and 1."""


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_equal(name, tiny_data, tmp_path):
    case = trained(f"{name}_equal", "mlp", tmp_path, tiny_data, **UNEVEN)
    loop.train(case.run, case.data, tmp_path / "initial.safetensors", tmp_path / "single", {})
    expected, found = steps(tmp_path / "single"), lines(tmp_path / "example")
    assert len(expected) == 4
    per_loss = 1e-6 if name == "hf_trainer" else 1e-10  # Trainer adds up losses in float32
    assert [each["loss"] for each in found] == pytest.approx([each["loss"] for each in expected], rel=per_loss)
    assert [each["grad_norm"] for each in found] == pytest.approx([each["grad_norm"] for each in expected], rel=1e-10)
    assert expected[0]["grad_norm"] > 1, "Trainer's default would clip"
    whole, weights = (load_file(tmp_path / folder / "model.safetensors") for folder in ("single", "example"))
    assert whole.keys() == weights.keys()
    for key, value in whole.items():
        torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-10 * value.abs().max().item())


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
