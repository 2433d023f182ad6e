"""Folders with all that a training needs: settings, random tokens, initial weights. No hub needed."""

from collections.abc import Callable
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
    "large": {"dim": 256, "layers": 4, "heads": 8, "kv_heads": 8, "hidden": 688, "vocab_size": 2048},
}
"""Name: arguments of the llama model."""
SHAPES = {"tiny": (4, 32), "middle": (8, 64), "large": (8, 128)}
"""Name: samples per batch, and tokens per sample."""


def prepare(
    place: Path, strategy: str, size: str, steps: int, recipe: dict[str, Any] | None = None, **config: Any
) -> Run:
    """Prepare a place with random tokens for the llama model of that size; return the run. ``config``: overrides."""
    samples, length = SHAPES[size]
    over = {"global_batch_size": samples, "eval_batch_size": samples, "max_steps": steps} | (recipe or {})
    run = run_of(strategy, "llama2", SIZES[size], {}, over, **config)
    draw = np.random.default_rng(0)

    def tokens(rows: int) -> dict[str, Any]:
        return {"tokens": draw.integers(0, SIZES[size]["vocab_size"], (rows, length + 1), dtype=np.int32)}

    write(place, run, tokens)
    return run


def run_of(
    strategy: str, workload: str, args: dict[str, Any], data: dict[str, Any], recipe: dict[str, Any], **config: Any
) -> Run:
    """Return the run of a workload's model with other arguments, on other data of its task."""
    plain: dict[str, Any] = {
        "max_grad_norm": 1.0,
        "epochs": 1,
        "checkpoint_interval_minutes": None,
        "optimizer": {"name": "adamw", "learning_rate": 1e-4},
    }
    checked = load.config({"recipe": plain | recipe} | config)
    known = load.workload(workload)
    size = known.sizes["small"].model_copy(update={"model": {}, "shape": args, "data": data})
    source = known.data["embedded"].model_copy(update={"shape": {}, "model": {}})
    other = known.model_copy(update={"sizes": {"small": size}, "data": {"embedded": source}})
    with mock.patch.object(load, "workload", return_value=other):
        run = resolve.run(checked, strategy, workload)
    return run.model_copy(update={"model": run.model.model_copy(update={"args": args})})


def torchrun(ranks: int) -> list[str]:
    """Return the options of Python that start a program on ``ranks`` ranks of this machine; none for one."""
    words = ["-m", "torch.distributed.run", "--log-dir=/dev/null", "--standalone", f"--nproc-per-node={ranks}"]
    return words if ranks > 1 else []


def write(place: Path, run: Run, arrays: Callable[[int], dict[str, Any]]) -> None:
    """Write settings, splits with as many samples as the run needs, and its initial weights."""
    place.mkdir(parents=True)
    write_json(place / "run.json", run.model_dump())
    batch, steps = run.recipe.global_batch_size, run.recipe.max_steps or 1
    for split, rows in (("train", batch * (steps + 1)), ("validation", batch), ("test", batch)):
        save_file(arrays(rows), place / f"{split}.safetensors")
    files = {f"{split}.safetensors": "" for split in ("train", "validation", "test")}
    manifest = {"data": run.data.model_dump(), "files": files, "fingerprint": store.fingerprint(files)}
    write_json(place / "dataset.json", manifest)
    weights = models.initial_weights(run.model, run.task, torch.float32, run.seed)
    with torch.device("meta"):
        model = models.build(run.model, run.task, torch.float32)
    save(weights, models.state(model), place / "initial.safetensors")
