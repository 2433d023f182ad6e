"""A folder with all that a training needs: settings, random tokens, initial weights. It needs no hub."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors.numpy import save_file

from shardlab import models
from shardlab.data import store
from shardlab.files import write_json
from shardlab.models.weights import save
from shardlab.settings import load, resolve
from shardlab.settings.types import Run

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 4, "hidden": 176, "vocab_size": 1024},
    "middle": {"dim": 192, "layers": 3, "heads": 6, "kv_heads": 6, "hidden": 512, "vocab_size": 1024},
    "tall": {"dim": 192, "layers": 14, "heads": 8, "kv_heads": 8, "hidden": 512, "vocab_size": 1024},
    "large": {"dim": 256, "layers": 4, "heads": 8, "kv_heads": 8, "hidden": 688, "vocab_size": 2048},
}
"""Name: arguments of the llama model; with the samples below a step takes some 5, 50, 150 and 150 ms on one core."""
SHAPES = {"tiny": (4, 32), "middle": (8, 64), "tall": (8, 32), "large": (8, 128)}
"""Name: samples and tokens of each in a batch."""


def prepare(
    place: Path, strategy: str, size: str, steps: int, recipe: dict[str, Any] | None = None, **config: Any
) -> Run:
    """Write run.json, random tokens and initial weights to ``place``; returns the run. ``config``: over defaults."""
    samples, length = SHAPES[size]
    plain: dict[str, Any] = {
        "global_batch": samples,
        "max_steps": steps,
        "clip_norm": 1.0,
        "epochs": 1,
        "checkpoint_minutes": None,
        "evaluation_batch": samples,
        "optimizer": {"name": "adamw", "learning_rate": 1e-4},
    }
    checked = load.config({"recipe": plain | (recipe or {})} | config)
    workload = load.workload("llama2")
    small = workload.sizes["small"]
    small = small.model_copy(update={"model": {}, "shape": small.shape | SIZES[size]})
    with mock.patch.object(load, "workload", return_value=workload.model_copy(update={"sizes": {"small": small}})):
        run = resolve.run(checked, strategy, "llama2")
    run = run.model_copy(update={"model": run.model.model_copy(update={"args": SIZES[size]})})
    place.mkdir(parents=True)
    write_json(place / "run.json", run.model_dump())
    draw = np.random.default_rng(0)
    for split, rows in (("train", samples * (steps + 1)), ("validation", samples), ("test", samples)):
        tokens = draw.integers(0, SIZES[size]["vocab_size"], (rows, length + 1), dtype=np.int32)
        save_file({"tokens": tokens}, place / f"{split}.safetensors")
    files = {f"{split}.safetensors": "" for split in ("train", "validation", "test")}
    manifest = {"data": run.data.model_dump(), "files": files, "fingerprint": store.fingerprint(files)}
    write_json(place / "dataset.json", manifest)
    weights = models.initial_weights(run.model, run.task, torch.float32, run.seed)
    save(weights, models.state(models.build(run.model, run.task, torch.float32)), place / "initial.safetensors")
    return run
