#!/usr/bin/env python3
"""The parity suite on GPUs: every strategy that their number allows, over NCCL, against `single` on one of them.

float64 has to agree to 1e-10, float32 (without TF32) to 5e-6 a step and 1e-4 at the test loss; bf16 is reported. With
one GPU, parallel strategies run on one rank: their code and NCCL, without a second one to talk to.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/parity"))

from shardlab.data import read, store
from shardlab.data.encoders import encode
from shardlab.errors import Unsupported, UserError, run_program
from shardlab.files import write_text
from shardlab.settings import load
from shardlab.settings.types import Run

KINDS: dict[str, dict[str, str]] = {
    "float64": {"dtype": "float64"},
    "float32": {"dtype": "float32"},
    "bf16": {"dtype": "float32", "precision": "bf16"},
}
"""Arithmetic: what the recipe says."""
BOUNDS = {
    "float64": dict.fromkeys(("gradient", "loss", "norm", "test"), 1e-10),
    "float32": dict.fromkeys(("gradient", "loss", "norm"), 5e-6) | {"test": 1e-4},
}
"""Arithmetic: largest relative differences to one device; bf16 has none."""


def main() -> None:
    """Train all cases, print and write the table; fail if one is outside of its bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only to try this program")
    parser.add_argument("--ranks", type=int, help="ranks (default: the GPUs that are there)")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "mnist", "xsum", "vit", "llama2"])
    parser.add_argument("--output", type=Path, default=Path("results/check_gpu.csv"), help="CSV file to write")
    args = parser.parse_args()
    ranks = args.ranks or torch.cuda.device_count()
    if (args.device == "cuda" and ranks > torch.cuda.device_count()) or not ranks:
        raise UserError(
            f"PyTorch sees {torch.cuda.device_count()} GPUs here; run this where there are {max(ranks, 1)}."
        )
    from group import Server  # type: ignore[import-not-found]

    # Also for the processes that are started: convolutions use TF32 by default, which is no float32.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    server = Server()
    try:
        with tempfile.TemporaryDirectory() as place:
            rows = [row for name in args.workloads for row in compare(server, Path(place), name, args.device, ranks)]
    finally:
        server.stop()
    table = pd.DataFrame(rows)
    write_text(args.output, table.to_csv(index=False))
    print(table.to_markdown(index=False, floatfmt=".0e"))
    if bad := [f"{row.strategy} x {row.workload} ({row.arithmetic})" for row in table[~table.good].itertuples()]:
        raise UserError(f"outside of the bounds {BOUNDS}: {', '.join(bad)}.")


def compare(server: Any, place: Path, workload: str, device: str, ranks: int) -> list[dict[str, Any]]:
    """Rows of one workload: each strategy in each arithmetic."""
    from group import differences, job

    from helpers.common import save_initial  # type: ignore[import-not-found]

    data = place / workload
    single = {kind: run_of(workload, "single", device, 1, kind) for kind in KINDS}
    store.write(data, single["float64"].data, *encode(single["float64"].data, read(single["float64"].data, place)))
    cases: dict[tuple[str, str], Run] = {}
    for strategy in load.read_yaml(load.CONFIG / "strategies.yaml"):
        for kind in KINDS:
            try:
                run = run_of(workload, strategy, device, ranks, kind)
            except UserError:
                continue  # needs more ranks, or makes no sense here
            if strategy != "single" and run.world_size in (1, ranks) and run.devices_per_rank <= ranks:
                cases[strategy, kind] = run
    for run in single.values():
        save_initial(run, place / f"{workload}-{run.recipe.dtype}")

    def asked(run: Run, name: str) -> Any:
        return job(run, data, place / f"{workload}-{run.recipe.dtype}", place / f"{workload}-{name}")

    server.work_off([asked(run, f"single-{kind}") for kind, run in single.items()], place, 1)
    server.work_off([asked(run, "-".join(case)) for case, run in cases.items()], place, ranks, group=True)
    rows = []
    for (strategy, kind), run in cases.items():
        names = [place / f"{workload}-{name}" for name in (f"{strategy}-{kind}", f"single-{kind}")]
        found = differences(*names, single[kind], data)
        bounds = BOUNDS.get(kind, {})
        good = all(value <= bounds.get(name, float("inf")) for name, value in found.items())
        where = {"workload": workload, "strategy": strategy, "ranks": run.world_size, "arithmetic": kind}
        rows.append(where | found | {"good": good})
    return rows


def run_of(workload: str, strategy: str, device: str, ranks: int, kind: str) -> Run:
    """A tiny run there."""
    from helpers.common import tiny_run

    run: Run = tiny_run(workload, strategy, ranks, **KINDS[kind])
    if run.engine == "deepspeed" and kind == "float64":
        raise Unsupported("DeepSpeed has no float64")
    return run.model_copy(update={"site": run.site.model_copy(update={"device": device})})


if __name__ == "__main__":
    run_program(main)
