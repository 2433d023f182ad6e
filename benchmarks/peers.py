#!/usr/bin/env python3
"""Compare this trainer's loop with a bare PyTorch loop: one step each in turn,
in one process.

On a shared machine only this can resolve a few percent. Both have the same
weights, batches, order, optimizer (the fused one), clipping and learning rate;
on two ranks, the bare loop uses DDP, fully_shard or deepspeed by hand. Ratios
are relative to the bare loop's step of the same round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.common import save_initial, tiny_run  # type: ignore[import-not-found]
from shardlab.data import read, store
from shardlab.data.encoders import encode
from shardlab.errors import UserError, run_program
from shardlab.files import write_json
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Run, read_run

SIZES: dict[str, tuple[dict[str, int], int, int]] = {
    "tiny": ({"dim": 64, "layers": 2, "heads": 4, "kv_heads": 4, "hidden": 176}, 4, 32),
    "middle": ({"dim": 192, "layers": 3, "heads": 6, "kv_heads": 6, "hidden": 512}, 8, 64),
    "large": ({"dim": 256, "layers": 4, "heads": 8, "kv_heads": 8, "hidden": 688}, 8, 128),
}
"""Name: arguments of the llama model, samples per batch, tokens per sample."""
STRATEGIES = ("single", "ddp", "fsdp", "zero2")
ROUNDS = 80
"""Steps of each; the first tenth is not counted."""


def main() -> None:
    """Race, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, metavar="SIZE", default=[*SIZES])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, metavar="NAME", default=STRATEGIES)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args.inside)
        return
    found = []
    for strategy in args.strategies:
        for size in args.sizes:
            with tempfile.TemporaryDirectory() as folder:
                seconds = started(Path(folder), prepare(Path(folder), strategy, size).world_size)
            found.append({"strategy": strategy, "size": size} | row(seconds.iloc[ROUNDS // 10 :]))
    print(pd.DataFrame(found).to_markdown(index=False, floatfmt=".4g"))


def prepare(place: Path, strategy: str, size: str) -> Run:
    """Write settings, prepared text and initial weights of a llama model of that size; return the run."""
    args, samples, length = SIZES[size]
    recipe: dict[str, Any] = {"global_batch_size": samples, "epochs": ROUNDS, "max_steps": ROUNDS, "max_grad_norm": 1.0}
    recipe |= {"checkpoint_interval_minutes": None, "optimizer": {"name": "adamw", "learning_rate": 1e-4}}
    run: Run = tiny_run("llama2", strategy, **recipe)
    options = run.data.options | {"characters": 100_000, "sequence_length": length}
    data = run.data.model_copy(update={"options": options})
    model = run.model.model_copy(update={"args": run.model.args | args, "segments": args["layers"] + 2})
    run = run.model_copy(update={"data": data, "model": model})
    write_json(place / "run.json", run.model_dump())
    store.write(place / "data", data, *encode(data, read(data, place)))
    save_initial(run, place / "initial.safetensors")
    return run


def started(place: Path, ranks: int) -> pd.DataFrame:
    """Run this program on the ranks; return the seconds of each step on rank 0, a column for each of the two."""
    words = ["-m", "torch.distributed.run", "--log-dir=/dev/null", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(words if ranks > 1 else []), __file__, "--inside", str(place)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise UserError(f"the race failed; its end was:\n{done.stdout[-3000:]}")
    return pd.DataFrame(json.loads((place / "seconds.json").read_text()))


def inside(place: Path) -> None:
    """Run one rank of a race."""
    from shardlab.runtime import distributed

    distributed.start(SiteRuntime())
    seconds = race(read_run(place / "run.json"), place)
    if distributed.is_main():
        write_json(place / "seconds.json", seconds)
    distributed.finish()


def race(run: Run, place: Path) -> dict[str, list[float]]:
    """Train with the project's complete loop, and take a step of the bare one before each of its steps; return the
    seconds of each step but the last, whose end is that of the training.

    Raises:
        UserError: the losses of the first steps differ, before rounding noise grows.
    """
    from shardlab.records import metrics
    from shardlab.runtime import distributed
    from shardlab.train import loop
    from shardlab.train.step import train_step

    steps, losses, times = bare(run, place), [], []

    def step(engine: Any, *args: Any, **options: Any) -> Any:
        times.append(time.perf_counter())
        losses.append(next(steps))
        times.append(time.perf_counter())
        return train_step(engine, *args, **options)

    folder = place / "shardlab"
    folder.mkdir(exist_ok=True)
    with mock.patch.object(loop, "train_step", step):
        loop.train(run, place / "data", place / "initial.safetensors", folder, {})
    if distributed.is_main():
        own = [record["loss"] for record in metrics.read(folder / metrics.NAME) if record["kind"] == "train"]
        if len(own) != run.recipe.max_steps or not np.allclose(own[:5], losses[:5], rtol=2e-4):
            raise UserError(f"it did not train like the bare loop: got {own[:5]}, expected {losses[:5]}.")
    apart = np.diff(times).tolist()
    return {"bare": apart[:-1:2], "shardlab": apart[1::2]}


def bare(run: Run, place: Path) -> Iterator[float]:
    """Train as one writes it by hand; yield the loss of each step, over all ranks."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.fsdp import fully_shard

    from shardlab import models
    from shardlab.data.order import BatchOrder, samples_of
    from shardlab.data.split_file import open_arrays
    from shardlab.models.weights import materialize
    from shardlab.settings.deepspeed import sized

    recipe, ranks = run.recipe, dist.get_world_size() if dist.is_initialized() else 1
    model: Any = models.build(run.model, run.task, torch.float32)
    materialize(model, place / "initial.safetensors", torch.device("cpu"))
    if run.strategy == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    for part in (*model.layers, model) if run.strategy == "fsdp" else ():
        fully_shard(part)
    rate, decay = recipe.optimizer.learning_rate, recipe.optimizer.weight_decay
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay, fused=True)
    if run.engine_config:  # zero2
        import deepspeed

        config = sized(run.engine_config, models.parameter_count(model))
        model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    tokens = open_arrays(place / "data/train.safetensors")["tokens"]
    order = BatchOrder(len(tokens), recipe.global_batch_size, run.seed)
    for number in range(recipe.max_steps or 0):
        rows = samples_of(order.batch(number), dist.get_rank() if ranks > 1 else 0, ranks)
        own = torch.from_numpy(tokens[rows]).long()
        loss = F.cross_entropy(model(own[:, :-1]).flatten(0, 1), own[:, 1:].flatten())
        if run.engine_config:
            model.backward(loss)
            model.step()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm or 0.0)
            optimizer.step()
            optimizer.zero_grad()
        whole = loss.detach()
        if ranks > 1:
            dist.all_reduce(whole)
        yield float(whole) / ranks


def row(seconds: pd.DataFrame) -> dict[str, float]:
    """Return median steps, and the median ratio to the bare loop's step of the same round with its standard error (by
    bootstrapping).
    """
    ratio = (seconds.shardlab / seconds.bare).to_numpy()
    medians = np.median(np.random.default_rng(0).choice(ratio, (500, len(ratio))), axis=1)
    steps = {f"{name} ms": 1000 * seconds[name].median() for name in ("bare", "shardlab")}
    return steps | {"ratio": float(np.median(ratio)), "standard error": float(medians.std())}


if __name__ == "__main__":
    run_program(main)
