"""`single` equals a plain PyTorch loop, the only test of what all strategies share."""

import pytest
import reference

from helpers.common import save_initial, tiny_run
from shardlab.records import metrics
from shardlab.train import loop
from shardlab.train.evaluation import evaluate_whole

TOLERANCE = 1e-12
EVERYTHING = {"max_steps": None, "epochs": 3, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "keep_best": True}
EVERYTHING["ema_decay"] = 0.7
RECIPES = {
    "mlp": {
        "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.2},
        # Worse in the second epoch, so that the best weights are not the last.
        "lr_schedule": {"name": "step", "gamma": 30.0},
    },
    "mnist": {
        "optimizer": {"name": "adadelta", "learning_rate": 0.5, "weight_decay": 0.1, "eps": 1e-4},
        "lr_schedule": {"name": "step", "gamma": 0.3},
    },
    "xsum": {
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.8, 0.9], "weight_decay": 0.3},
        "label_smoothing": 0.2,
        "decay": "matrices",
        "lr_schedule": {"name": "cosine", "warmup_steps": 2, "end": 0.1},
    },
    "vit": {
        "optimizer": {
            "name": "adam",
            "learning_rate": 1e-3,
            "betas": [0.5, 0.95],
            "weight_decay": 0.1,
            "eps": 1e-4,
        },
        "lr_schedule": {"name": "linear", "end": 0.2},
        "label_smoothing": 0.1,
        "freeze": ["patches", "layers.0.attention", "layers.*.mlp_norm.weight"],
    },
    "llama2": {
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.7, 0.9], "weight_decay": 0.5},
        "lr_schedule": {"name": "linear", "warmup_steps": 1},
        "label_smoothing": 0.1,  # without chunks
        "decay": "matrices",
        "groups": {
            "layers.*.attention": {"learning_rate_factor": 0.5},
            "layers.1.up.weight": {"weight_decay": 0.0},
            "norm": {"learning_rate_factor": 3.0, "weight_decay": 0.1},
        },
    },
    "instruct": {
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.7, 0.9], "weight_decay": 0.5},
        "activation_checkpointing": "full",
        "loss_chunks": 3,
        "label_smoothing": 0.2,
    },
    "moe": {
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.2},
        "label_smoothing": 0.3,
        "loss_chunks": 3,
        "activation_checkpointing": "full",
    },
}


def near(expected):
    return pytest.approx(expected, rel=TOLERANCE, abs=0)


RECIPES["llama2_adapted"] = {
    "optimizer": {"name": "adamw", "learning_rate": 3e-2, "betas": [0.7, 0.9], "weight_decay": 0.5},
    "adapter": {"rank": 3, "alpha": 6, "targets": ["layers.*.attention.*", "layers.1.down", "output"]},
}


RECIPES["moe_muon"] = {
    "optimizer": {"name": "muon", "learning_rate": 0.02, "weight_decay": 0.1, "betas": [0.8, 0.9]},
    "groups": {"output": {"optimizer": "adamw", "learning_rate_factor": 0.1}},
}


@pytest.mark.parametrize("name", RECIPES)
def test_single_equals_a_plain_loop(name, tiny_data, tmp_path):
    workload = name.partition("_")[0]
    run = tiny_run(workload, dtype="float64", **EVERYTHING, **RECIPES[name])
    data, initial = tiny_data / workload, tmp_path / "initial"
    save_initial(run, initial)
    expected = reference.train(run.model_dump(mode="json"), data, initial)
    loop.train(run, data, initial, tmp_path, {})
    lines = metrics.read(tmp_path / "metrics.jsonl")

    steps = [record for record in lines if record["kind"] == "train"]
    sizes = [step["samples"] for step in steps]
    assert sizes[-1] < sizes[0], "the last batch is ragged"
    assert steps[-1]["epoch"] == 2
    for actual, reference_value in zip(steps, expected["steps"], strict=True):
        assert {key: actual[key] for key in reference_value} == near(reference_value), f"step {actual['step']}"
    validations = [record["loss"] for record in lines if record["kind"] == "validation"]
    assert validations == near(expected["validations"])
    assert evaluate_whole(run, data, tmp_path / "model.safetensors").loss == near(expected["test"])
    assert evaluate_whole(run, data, tmp_path / "best.safetensors").loss == near(expected["best"])
    assert evaluate_whole(run, data, tmp_path / "ema.safetensors").loss == near(expected["ema"])
    if workload == "mlp":
        assert validations[-1] > min(validations), "the best weights are not the last"
