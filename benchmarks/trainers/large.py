"""Speed and memory of large models on GPUs: a decoder of 0.94 B, Llama of 7 B with and without recomputation, ViT-B/16,
and ZeRO-3 with its states in CPU memory; each plan's memory next to what PyTorch had allocated.

Weights and samples are generated here: no hub, no data set. A model that does not fit has a row that says so.
"""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from safetensors.numpy import save_file

from shardlab import models
from shardlab.data import encoders, store
from shardlab.errors import UserError
from shardlab.files import ROOT, read_json, write_json
from shardlab.models.weights import save
from shardlab.plan.simulate import simulate
from shardlab.records import plan
from shardlab.runs import commands
from shardlab.runs.stages import Scope
from shardlab.settings import load, resolve
from shardlab.settings.types import Run

TINY = {"dim": 64, "layers": 2, "heads": 4, "kv_heads": 4, "hidden": 176, "vocab_size": 1024}
"""Arguments of a model that takes seconds on a CPU."""
FAST = {"precision": "bf16", "compile": "blocks"}
GPT = {"dim": 2048, "layers": 16, "heads": 16, "kv_heads": 16, "hidden": 5504, "vocab_size": 32000}
"""0.94 B: 16 layers of 2,048, a size that the Kempner Institute's handbook measures."""
LLAMA = {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "hidden": 11008, "vocab_size": 32000}
VIT = {
    "channels": 3,
    "image_size": 224,
    "classes": 1000,
    "patch": 16,
    "dim": 768,
    "layers": 12,
    "heads": 12,
    "hidden": 3072,
}
COLUMNS = ("model", "strategy", "ranks", "batch", "planned GiB", "peak GiB", "step ms", "tokens/s", "images/s", "MFU")
"""Columns of the table; batch, tokens and images are those of all ranks, the memory is that of the fullest."""


class Case(NamedTuple):
    """A row of the table."""

    name: str
    workload: str
    strategy: str
    args: dict[str, int]
    length: int
    """Tokens per sample; 1 for images, which are counted."""
    batch: int
    """Samples per rank."""
    recipe: dict[str, Any]


CASES = [
    Case("GPT 0.94 B", "llama2", "single", GPT, 1024, 12, FAST),
    Case("GPT 0.94 B", "llama2", "fsdp", GPT, 1024, 12, FAST),
    Case("GPT 0.94 B", "llama2", "zero3_offload", GPT, 1024, 12, {"precision": "bf16"}),
    Case("Llama 7 B, recomputed", "llama2", "fsdp", LLAMA, 4096, 2, FAST | {"activation_checkpointing": "full"}),
    Case("Llama 7 B", "llama2", "fsdp", LLAMA, 4096, 1, FAST),
    Case("ViT-B/16", "vit", "single", VIT, 1, 256, FAST),
]


def measured(words: str, device: str, ranks: int, steps: int, place: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the models whose name contains these words, each as soon as it was trained."""
    cases = [case for case in CASES if words in case.name]
    if not cases:
        names = ", ".join(dict.fromkeys(case.name for case in CASES))
        raise UserError(f"--models {words}: no model has that in its name; known: {names}.")
    if device == "cpu":
        cases = [tiny(case) for case in cases]
    with tempfile.TemporaryDirectory(dir=place) as folder:
        for number, case in enumerate(cases):
            yield row(case, Path(folder) / str(number), device, ranks, steps)


def shown(value: float) -> str:
    """Format a value of the table."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def tiny(case: Case) -> Case:
    """Return the case at a size that takes seconds on a CPU."""
    sizes = {"image_size": 32, "classes": 10} | TINY
    args = case.args | {key: value for key, value in sizes.items() if key in case.args}
    recipe = case.recipe | {"compile": "none"}
    name, length = f"{case.name}, tiny", min(case.length, 32)
    return case._replace(name=name, args=args, length=length, batch=4, recipe=recipe)


def row(case: Case, place: Path, device: str, ranks: int, steps: int) -> dict[str, Any]:
    """Return what was planned and measured; without values if it failed, for example out of memory."""
    batch = case.batch * (1 if case.strategy == "single" else ranks)
    recipe = {"global_batch_size": batch, "eval_batch_size": batch, "max_steps": steps} | case.recipe
    data, config = {"sequence_length": case.length}, {"ranks_per_node": ranks, "site_settings": {"device": device}}
    run = run_of(case.strategy, case.workload, case.args, data, recipe, **config)
    write(place, run, lambda rows: encoders.blank(run.data, rows))
    (reported,) = simulate([(run, None)])
    found = {"model": case.name, "strategy": case.strategy, "ranks": run.world_size, "batch": batch}
    found["planned GiB"] = None if isinstance(reported, str) else plan.peak(reported) / 2**30
    done = train(place, run)
    text = done.stdout + done.stderr
    (place / "initial.safetensors").unlink()
    if done.returncode and "out of memory" in text:
        return found | {"peak GiB": "out of memory"}
    if done.returncode:
        raise UserError(f"{case.name} under {case.strategy} failed:\n{text[-3000:]}")
    report = read_json(place / "train.json", "report of the run", "train again")
    seconds = report["step_seconds_median"]
    return found | {
        "peak GiB": max(report["peak_memory_bytes"]) / 2**30,
        "step ms": 1000 * seconds,
        "tokens/s" if case.length > 1 else "images/s": batch * case.length / seconds,
        "MFU": report["mfu"],
    }


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


def train(place: Path, run: Run) -> "subprocess.CompletedProcess[str]":
    """Train what was written to ``place`` as `shardlab launch` would, without its checks and attempts."""
    words = {"settings": place / "run.json", "data": place, "weights": place / "initial.safetensors", "output": place}
    program = [str(ROOT / "scripts/shardlab"), "train", *(f"--{key}={value}" for key, value in words.items())]
    lines = commands.lines(run, program, None, Scope.RANKS)
    return subprocess.run(["bash", "-c", lines], capture_output=True, text=True)


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
