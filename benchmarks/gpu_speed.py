#!/usr/bin/env python3
"""Speed and memory of large models on one GPU: a decoder of 0.94 B, Llama of 7 B with and without recomputation,
ViT-B/16, and ZeRO-3 that keeps its states in the CPU's memory; each plan's memory beside what PyTorch had allocated.

On weights and samples made here: no hub, no data set. A model that does not fit has a row that says so.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.places import SIZES, run_of, train, write  # type: ignore[import-not-found]

from shardlab.data import encoders
from shardlab.errors import UserError, run_program
from shardlab.files import read_json, write_text
from shardlab.report import plan
from shardlab.runs.simulate import simulate

FAST = {"precision": "bf16", "compile": "blocks"}
GPT = {"dim": 2048, "layers": 16, "heads": 16, "kv_heads": 16, "hidden": 5504, "vocab_size": 32000}
"""0.94 B: 16 layers of 2,048, of a size that the Kempner Institute's handbook measures."""
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


class Case(NamedTuple):
    """A row of the table."""

    name: str
    workload: str
    strategy: str
    args: dict[str, int]
    length: int
    """Tokens of a sample; 1 for images, which are counted."""
    batch: int
    recipe: dict[str, Any]


CASES = [
    Case("GPT 0.94 B", "llama2", "single", GPT, 1024, 12, FAST),
    Case("GPT 0.94 B", "llama2", "fsdp", GPT, 1024, 12, FAST),
    Case("GPT 0.94 B", "llama2", "zero3_offload", GPT, 1024, 12, {"precision": "bf16"}),
    Case("Llama 7 B, recomputed", "llama2", "fsdp", LLAMA, 4096, 2, FAST | {"activation_checkpointing": "full"}),
    Case("Llama 7 B", "llama2", "fsdp", LLAMA, 4096, 1, FAST),
    Case("ViT-B/16", "vit", "single", VIT, 1, 256, FAST),
]


def main() -> None:
    """Train, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tiny models, to try this program"
    )
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--place", type=Path, help="folder for weights of up to 27 GB (default: a temporary one)")
    parser.add_argument(
        "--output", type=Path, default=Path("results/benchmarks/gpu_speed.csv"), help="CSV file to write"
    )
    args = parser.parse_args()
    cases = [case for case in CASES if args.only in case.name]
    if args.device == "cpu":
        cases = [tiny(case) for case in cases]
    with tempfile.TemporaryDirectory(dir=args.place) as place:
        rows = [measured(case, Path(place) / str(i), args.device, args.steps) for i, case in enumerate(cases)]
    table = pd.DataFrame(rows)
    write_text(args.output, table.to_csv(index=False))
    print(table.to_markdown(index=False, floatfmt=".4g"))


def tiny(case: Case) -> Case:
    """The same of a size that a CPU takes seconds for."""
    small = {"image_size": 32, "classes": 10} | {
        key: value for key, value in SIZES["tiny"].items() if key != "kv_heads"
    }
    sizes = SIZES["tiny"] if case.workload == "llama2" else small
    args = case.args | {key: value for key, value in sizes.items() if key in case.args}
    return case._replace(args=args, length=min(case.length, 32), batch=4, recipe=case.recipe | {"compile": "none"})


def measured(case: Case, place: Path, device: str, steps: int) -> dict[str, Any]:
    """A row: what was planned and what was measured; without figures where it failed, as for want of memory."""
    recipe = {"global_batch": case.batch, "evaluation_batch": case.batch, "max_steps": steps} | case.recipe
    data = {"sequence_length": case.length}
    site = {"device": device}
    run = run_of(case.strategy, case.workload, case.args, data, recipe, ranks_per_node=1, site_settings=site)
    write(place, run, lambda rows: encoders.blank(run.data, rows))
    (told,) = simulate([(run, None)])
    row: dict[str, Any] = {"model": case.name, "strategy": case.strategy, "batch": case.batch}
    row["planned GiB"] = None if isinstance(told, str) else plan.peak(told) / 2**30
    done = train(place, run)
    text = done.stdout + done.stderr
    (place / "initial.safetensors").unlink()
    if done.returncode and "out of memory" in text:
        return row | {"device": "out of memory"}
    if done.returncode:
        raise UserError(f"{case.name} under {case.strategy} failed:\n{text[-3000:]}")
    report = read_json(place / "train.json", "report of the run", "train again")
    seconds = report["step_seconds_median"]
    return row | {
        "step ms": 1000 * seconds,
        "tokens/s" if case.length > 1 else "images/s": case.batch * case.length / seconds,
        "MFU": report["mfu"],
        "peak GiB": max(report["peak_memory_bytes"]) / 2**30,
        "device": report["devices"][0],
    }


if __name__ == "__main__":
    run_program(main)
