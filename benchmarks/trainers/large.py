"""Speed and memory of large models on GPUs: a decoder of 0.94 B, Llama of 7 B with and without recomputation, ViT-B/16,
and ZeRO-3 with its states in CPU memory; each plan's memory next to what PyTorch had allocated.

Weights and samples are generated here: no hub, no data set. A model that does not fit has a row that says so.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shardlab.data import encoders
from shardlab.errors import UserError
from shardlab.files import read_json
from shardlab.plan.simulate import simulate
from shardlab.records import plan
from trainers.places import SIZES, run_of, train, write  # type: ignore[import-not-found]

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
    sizes = {"image_size": 32, "classes": 10} | SIZES["tiny"]
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
