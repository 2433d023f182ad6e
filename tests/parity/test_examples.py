"""Each file in examples/ trains what the project trains on one device."""

import json

import pytest
import script_rank
from group import steps
from safetensors.torch import load_file

from helpers.common import ROOT, save_initial, tiny_run
from shardlab.cli import check_script
from shardlab.train import loop

# Relative differences per step, and of the final weights; without float64 as in group.py.
TOLERANCES = {"float64": (1e-10, 1e-10), "float32": (5e-6, 1e-4)}
# Of 12 samples: a batch of 11, and one whose second rank has no sample.
UNEVEN = {"global_batch_size": 11}
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
}
"""Name of a file: its ranks, a workload and changes to its recipe."""

LONG = pytest.mark.long


class Case:
    """An example's training, and that of the same run by the project on one device."""

    def __init__(self, workload, folder, prepared, **recipe):
        schedule = {"name": "step", "gamma": 0.3}
        self.run = tiny_run(workload, **{"dtype": "float64", "max_grad_norm": 0.1, "lr_schedule": schedule} | recipe)
        self.data, self.folder = prepared / workload, folder
        (folder / "run.json").write_text(self.run.model_dump_json())
        save_initial(self.run, folder / "initial.safetensors")
        for name in ("single", "example"):
            (folder / name).mkdir()

    @property
    def arguments(self):
        names = {"run": "run.json", "weights": "initial.safetensors", "output": "example"}
        return [
            "--data",
            self.data,
            *(word for key, name in names.items() for word in (f"--{key}", self.folder / name)),
        ]

    def compare(self):
        """Compare loss, gradient norm and the final weights."""
        per_step, at_end = TOLERANCES[self.run.recipe.dtype]
        single, example = self.folder / "single", self.folder / "example"
        loop.train(self.run, self.data, self.folder / "initial.safetensors", single, {})
        found = [json.loads(line) for line in (example / "metrics.jsonl").read_text().splitlines()]
        keys = ("step", "loss", "grad_norm")
        expected = [{key: step[key] for key in keys} for step in steps(single)]
        assert len(expected) == 4
        assert min(step["grad_norm"] for step in expected) > self.run.recipe.max_grad_norm, "all of them are clipped"
        assert found == [pytest.approx(step, rel=per_step, abs=0) for step in expected]
        weights, whole = (load_file(folder / "model.safetensors") for folder in (example, single))
        assert {name: (each.dtype, each.shape) for name, each in weights.items()} == {
            name: (each.dtype, each.shape) for name, each in whole.items()
        }
        for name, expected_weight in whole.items():
            difference = (weights[name] - expected_weight).abs().max()
            assert difference <= at_end * expected_weight.abs().max(), name


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if CASES[name][0] > 2 else ()) for name in CASES])
def test_example_equals_single(name, tiny_data, tmp_path):
    ranks, workload, recipe = CASES[name]
    case = Case(workload, tmp_path, tiny_data, **recipe)
    script_rank.run(ROOT / f"examples/{name}.py", case.arguments, ranks, tmp_path / "log")
    case.compare()


HALF_GRADIENTS = """
import runpy, sys
sys.path.insert(0, {examples!r})
import torch
backward = torch.Tensor.backward
torch.Tensor.backward = lambda loss: backward(loss / 2)
runpy.run_path({examples!r} + "/ddp.py", run_name="__main__")
"""


def test_check_script_says_which_rules_a_script_keeps(tiny_data, tmp_path):
    run = tiny_run("mlp", dtype="float64", max_steps=2)
    save_initial(run, tmp_path / "initial.safetensors")
    faulty = tmp_path / "script.py"
    faulty.write_text(HALF_GRADIENTS.format(examples=str(ROOT / "examples")))
    for script, broken in (
        (ROOT / "examples/ddp.py", {}),
        (faulty, {"its losses": "0.5 times single's", "model.safetensors has": "off by 0.5"}),
    ):
        folder = tmp_path / script.stem
        folder.mkdir()
        found = dict(check_script.check(run, script, tiny_data / "mlp", tmp_path / "initial.safetensors", folder, 2))
        wrong = {rule: says for rule, says in found.items() if says}
        assert (len(found), len(wrong)) == (4, len(broken))
        for (rule, says), (start, words) in zip(wrong.items(), broken.items(), strict=True):
            assert rule.startswith(start)
            assert words in says


def test_every_example_has_a_case():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"common"}
    assert files == {*CASES}
