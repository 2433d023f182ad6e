"""Each file in examples/trainers/ is as equal to one device, or unequal, as docs/your-own.md says."""

import json

import pytest
import script_rank
import torch
import torch.nn.functional as F
from group import steps
from safetensors.torch import load_file
from test_examples import Case

from helpers.common import ROOT, with_weights
from shardlab.data.order import BatchOrder
from shardlab.train import loop
from traindiff import command_line
from traindiff.dump import dump

FOLDER = ROOT / "examples/trainers"
PACKAGES = {"hf_trainer": ["transformers", "accelerate"], "lightning_ddp": ["lightning"]}
ADAMW = {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.1}
NO_DECAY = {"optimizer": ADAMW | {"weight_decay": 0.0}}

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


def first_difference(case, capsys):
    """Return what the diagnosis says of the dumps of a training and of the same in a plain loop, both of llama2."""
    run, model = case.run, with_weights(case.run)
    tokens = load_file(case.data / "train.safetensors")["tokens"].long()
    settings = run.recipe.optimizer
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay)
    batches = BatchOrder(len(tokens), run.recipe.global_batch_size, run.seed)
    with dump(model, case.folder / "plain") as dumped:
        for step in range(run.recipe.max_steps):
            rows = tokens[torch.from_numpy(batches.batch(step))]
            losses = F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction="none").mean(dim=1) / len(rows)
            dumped.samples(losses)
            losses.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    command_line.main([str(case.folder / "example/dumps"), str(case.folder / "plain")])
    page = capsys.readouterr().out
    return page.split("**")[1]


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "recipe", "place", "cause"),
    [
        ("hf_trainer", {}, "step 0, optimizer state", "clip: to a norm of 1"),
        ("hf_trainer", {"max_grad_norm": 100}, "step 0, update", "decay: "),
        ("hf_trainer", {"max_grad_norm": 100} | NO_DECAY, "step 1, update", "rate: "),
        ("lightning_ddp", {}, "step 0, samples", "other samples: "),
    ],
)
def test_unequal(name, recipe, place, cause, tiny_data, tmp_path, capsys):
    case = trained(name, "llama2", tmp_path, tiny_data, global_batch_size=6, **recipe)
    found = first_difference(case, capsys)
    assert found.startswith(f"First difference: {place}")
    assert f"; cause: {cause}" in found


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
