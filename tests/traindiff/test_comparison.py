"""Each quantity that two captures have is compared, in its stage, up to its own distance."""

import copy
import json
import math

import pytest
import torch
from tiny_dumps import dump

from traindiff.capture_files import Capture
from traindiff.comparison import stages
from traindiff.pair import Pair

W = torch.tensor([0.3, -20.0]).double()
FILES = {
    "initial": {"w": torch.zeros(2).double(), "constant": W},
    "step0/gradients": {"w": W, "nothing": torch.zeros(2).double()},
    "step0/clipped": {"w": W},
    "step0/optimizer": {"w//exp_avg": W},
    "step0/weights": {"w": W, "constant": W},
    "restored/weights": {"w": W, "constant": W},
    "restored/optimizer": {"w//exp_avg": W},
}
NUMBERS = ("loss", "norm", "reported_loss", "samples", "targets", "learning_rate")
ABOUT = {"parameters": ["w"], "resumed_at": 1, "steps_in_all": 4, "evaluated": {"test": 0.3}}
ABOUT |= {"steps": [dict.fromkeys(NUMBERS, 0.3)]}
LIMITS = {
    "float64": (1e-9, 1e-9, 4 * 2.2e-16, 1e-5, 1e-4),
    "bfloat16": (5e-2, 1e-2, 4 * 7.8e-3, 5e-2, 8e-3),
}
"""Dtype of both trainings: up to which relative difference tensors, numbers, initial weights and updates are equal, and
below which part of the largest tensor another one is rounding."""


@pytest.fixture
def differs(tmp_path):
    """Function that moves one value by a part of it; returns the stages that differ, and the names of what does."""
    number = iter(range(1000))

    def capture(dtype, place, key, apart, without):
        files = {name: {key: value.clone() for key, value in tensors.items()} for name, tensors in FILES.items()}
        about = copy.deepcopy(ABOUT) | {"dtype": dtype}
        if place in files:
            files[place][key] += apart * (W if key != "nothing" else torch.ones(2))
        elif place:
            step = about["steps"][0]
            values = {"capture": about, "evaluated": about["evaluated"], "step": step}[place]
            values[key] *= 1 + apart
        # A restored engine is compared with the one before it, which is not to differ alone.
        restores = place.startswith("restored") or key == "resumed_at"
        without = {*without, *(name for name in files if name.startswith("restored") and not restores)}
        folder = dump(tmp_path / str(next(number)), {name: files[name] for name in files.keys() - without})
        (folder / "capture.json").write_text(json.dumps(about))
        return Capture(folder)

    def found(dtype, place, key, apart, twin=None, without=()):
        every = [capture(dtype, place, key, each, without) for each in (apart, 0.0, twin) if each is not None]
        return {stage.kind: [row.name for row in stage.wrong] for stage in stages(Pair(*every)) if stage.wrong}

    return found


@pytest.mark.parametrize("dtype", LIMITS)
def test_what_differs_is_seen_in_its_stage(differs, dtype):
    tensors, numbers, initial, updates, floor = LIMITS[dtype]
    reported = max(numbers, 1e-5)  # which a trainer may add up in float32
    table = [
        ("step0/gradients", "w", tensors, "gradient"),
        ("step0/gradients", "nothing", 20 * floor * tensors, "gradient"),
        ("step0/clipped", "w", tensors, "clipped gradient"),
        ("step0/optimizer", "w//exp_avg", tensors, "optimizer state"),
        ("step0/weights", "w", updates, "update"),
        ("step0/weights", "constant", tensors, "buffers"),
        ("initial", "constant", initial, "initial weights"),
        ("step", "loss", numbers, "loss"),
        ("step", "norm", numbers, "norm"),
        ("step", "reported_loss", reported, "reported loss"),
        *(("step", key, numbers, "schedule") for key in ("samples", "targets", "learning_rate")),
        ("evaluated", "test", numbers, "evaluation"),
        ("restored/weights", "w", 1e-5, "restored checkpoint"),
        ("restored/optimizer", "w//exp_avg", 1e-5, "restored checkpoint"),
    ]
    for place, key, limit, stage in table:
        assert differs(dtype, place, key, 0.5 * limit) == {}, (place, key)
        assert [*differs(dtype, place, key, 2 * limit)] == [stage], (place, key)
        assert [*differs(dtype, place, key, math.nan)] == [stage], (place, key)
    assert [*differs(dtype, "step0/weights", "w", 2 * tensors, without=["initial"])] == ["weights"], "without updates"
    assert differs(dtype, "step0/weights", "w", 0.5 * tensors, without=["initial"]) == {}
    # Whole numbers are exact.
    assert [*differs(dtype, "capture", "steps_in_all", 1.0)] == ["schedule"]
    assert [*differs(dtype, "capture", "resumed_at", 1.0)] == ["restored checkpoint"]
    twins = [differs(dtype, "step0/gradients", "w", part * 10 * 3 * tensors, 3 * tensors) for part in (0.5, 2)]
    assert twins == [{}, {"gradient": ["w"]}]
    assert differs(dtype, "step0/gradients", "w", 2 * tensors, math.nan) == {"gradient": ["w"]}
