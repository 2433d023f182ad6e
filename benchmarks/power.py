#!/usr/bin/env python3
"""Train each workload with faults of known size, and judge each as the summary
does: what the verdict alone detects.

Prints the table of docs/equality.md. Each fault acts on `single` as it would on
two ranks: the weights see the same, and no check but the verdict is in its way.
"""

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from trainers.judged import prepare, rows  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import write_text
from shardlab.records.reports import FIRST_STEPS
from shardlab.report.verdict import DIFFERENCES, EQUAL, judge
from shardlab.settings import load, resolve
from shardlab.settings.precisions import STATES
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Run

Engine = Any
Fault = Callable[[Engine], None]


def nothing(engine: Engine) -> None:
    """No fault: the verdict must be equal."""


def summed(engine: Engine) -> None:
    """Sum the gradients over two ranks instead of averaging them."""
    _with_scale(engine, lambda number: 2.0)


def one_gradient_halved(engine: Engine) -> None:
    """Skip the reduction of the last parameter's gradient over two tensor-parallel ranks: half of it on average."""

    def halve(number: int, rate: float) -> float:
        list(engine.models[0].parameters())[-1].grad.mul_(0.5)
        return rate

    _before_update(engine, halve)


def not_reduced(engine: Engine) -> None:
    """Update rank 0 with the gradient of only its half of the samples."""
    _with_part(engine, lambda micro, number: (micro.count // 2, 2.0))


def dropped(engine: Engine) -> None:
    """Count one sample of the second step only in the number of targets."""
    _with_part(engine, lambda micro, number: (micro.count - (number == 1), 1.0))


def in_bf16(engine: Engine) -> None:
    """Round gradients to bf16 before they are reduced."""

    def rounded(number: int, rate: float) -> float:
        for parameter in engine.models[0].parameters():
            parameter.grad.copy_(parameter.grad.bfloat16())
        return rate

    _before_update(engine, rounded)


def bias_correction(engine: Engine) -> None:
    """Advance Adam's bias correction by one step, as after a resume that counts a step twice."""

    def ahead(number: int, rate: float) -> float:
        if number == 1:
            for state in engine.optimizer.state.values():
                state["step"] += 1
        return rate

    _before_update(engine, ahead)


def learning_rate(engine: Engine) -> None:
    """Increase the learning rate by one part in a thousand."""
    _before_update(engine, lambda number, rate: rate * 1.001)


def learning_rate_slightly(engine: Engine) -> None:
    """Increase the learning rate by one part in a hundred thousand."""
    _before_update(engine, lambda number, rate: rate * 1.00001)


def last_update(engine: Engine) -> None:
    """Skip the update of the last step."""
    last = engine.last_step
    _before_update(engine, lambda number, rate: 0.0 if number == last else rate)


def one_weight(engine: Engine) -> None:
    """Change one weight of the first parameter by one part in a thousand from the start."""
    next(engine.models[0].parameters()).data.view(-1)[0].mul_(1.001)


FAULTS: dict[str, tuple[Fault, str]] = {
    "none": (nothing, ""),
    "gradients summed, not averaged": (summed, "parity: gradients at step 0"),
    "one parameter's gradient halved": (one_gradient_halved, "parity: gradients at step 0"),
    "gradients not reduced": (not_reduced, "parity: gradients at step 0"),
    "one sample dropped in one step": (dropped, "count of samples (`targets_per_rank`)"),
    "gradients reduced in bf16": (in_bf16, "parity: gradients at step 0"),
    "bias correction one step ahead": (bias_correction, "parity: resume, bitwise"),
    "learning rate + 0.1 %": (learning_rate, "parity: reference loop"),
    "learning rate + 0.001 %": (learning_rate_slightly, "parity: reference loop"),
    "last update lost": (last_update, "parity: reference loop"),
    "one weight + 0.1 %": (one_weight, "digest of the initial weights"),
}
"""Name: the fault, and the check that catches it if the verdict does not."""


def _before_update(engine: Engine, change: Callable[[int, float], float]) -> None:
    """Call ``change`` with step and learning rate before each update; use the learning rate it returns."""
    update, number = engine.step, iter(range(10**9))
    engine.step = lambda rate: update(change(next(number), rate))


def _with_scale(engine: Engine, factor: Callable[[int], float]) -> None:
    """Multiply the gradients of a step, not the loss that is logged."""
    add, number = engine.forward_backward, iter(range(10**9))
    engine.forward_backward = lambda micro, scale, *, last: add(micro, scale * factor(next(number)), last=last)


def _with_part(engine: Engine, choose: Callable[[Any, int], tuple[int, float]]) -> None:
    """Take the gradient of the first samples of a step alone, times a factor; log the loss of all, count all."""
    add, number, count = engine.forward_backward, iter(range(10**9)), engine.task.count

    def of_part(micro: Any, scale: float, *, last: bool) -> Any:
        samples, factor = choose(micro, next(number))
        loss = engine.loss(micro).detach()
        batch = {name: values[:samples] for name, values in micro.batch.items()}
        engine.task.count = lambda outputs, part: count([None] * micro.count, micro)
        add(replace(micro, batch=batch, count=samples, rows=samples), scale * factor, last=last)
        return loss

    engine.forward_backward = of_part


def applies(name: str, run: Run) -> bool:
    """Return whether a fault applies to a run: only Adam corrects a bias."""
    return "bias" not in name or run.recipe.optimizer.name.startswith("adam")


def judged(run: Run, place: Path) -> pd.DataFrame:
    """Return judged rows of a workload's ``single`` and of its training with each fault."""
    from shardlab import parallel
    from shardlab.train import loop

    prepare(run, place)
    build, last = parallel.build, count_steps(run, place) - 1
    names = {"single": nothing} | {name: fault for name, (fault, _) in FAULTS.items() if applies(name, run)}
    for name, fault in names.items():

        def faulty(*arguments: Any, fault: Fault = fault) -> Engine:
            engine: Any = build(*arguments)
            engine.last_step = last
            fault(engine)
            return engine

        (place / name).mkdir()
        with mock.patch.object(parallel, "build", faulty), redirect_stdout(io.StringIO()):
            loop.train(run, place / "data", place / "initial", place / name, {})
    return judge(rows(run, place, list(names)))


def count_steps(run: Run, place: Path) -> int:
    """Return the number of steps of a run over its prepared data."""
    import torch

    from shardlab.data.order import BatchOrder
    from shardlab.runtime import tasks

    samples = tasks.task_for(run, place / "data", torch.device("cpu")).samples("train")
    per_epoch = BatchOrder(samples, run.recipe.global_batch_size, run.seed).steps_per_epoch
    return min(run.recipe.epochs * per_epoch, run.recipe.max_steps or sys.maxsize)


def cell(row: dict[Any, Any]) -> str:
    """Return where the verdict detects it, and the difference there."""
    if row["equality"] == EQUAL:
        return f"- ({max(row['first_rel_diff'], *(row[each] for each in DIFFERENCES)):.0e})"
    if row["first_rel_diff"] > row["first_tolerance"]:
        return f"start {row['first_rel_diff']:.0e}"
    return f"end {max(row[each] for each in DIFFERENCES):.0e}"


def main() -> None:
    """Train, judge, print and write the table; fail if a training without a fault is not equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["mlp", "mnist", "xsum", "vit", "llama2"])
    parser.add_argument("--dtypes", nargs="+", choices=STATES, default=["float32", "float64"], metavar="DTYPE")
    parser.add_argument("--output", type=Path, default=Path("results/power.csv"), help="CSV file of every training")
    args = parser.parse_args()
    from shardlab.runtime import distributed

    distributed.start(SiteRuntime())
    tables = []
    for workload in args.workloads:
        for dtype in args.dtypes:
            run = resolve.run(load.config({"dtype": dtype}), "single", workload)
            with tempfile.TemporaryDirectory() as folder:
                tables.append(judged(run, Path(folder)).assign(dtype=dtype))
            write_text(args.output, pd.concat(tables).to_csv(index=False))
    table = pd.concat(tables, ignore_index=True)
    print(f"start: first {FIRST_STEPS} steps; end: test or validation loss; -: not seen (largest difference).\n")
    print(shown(table, args.workloads))
    if not (table[table.strategy == "none"].equality == EQUAL).all():
        raise UserError("a training without a fault is not equal to single.")


def shown(table: pd.DataFrame, workloads: list[str]) -> str:
    """Return a row per fault and arithmetic, a column per workload, and the check that catches it otherwise."""
    cells = {(row["strategy"], row["dtype"], row["workload"]): cell(row) for row in table.to_dict("records")}
    lines = [
        {"fault": name, "dtype": dtype}
        | {workload: cells.get((name, dtype, workload), "no Adam") for workload in workloads}
        | {"otherwise caught by": check}
        for name, (_, check) in FAULTS.items()
        for dtype in dict.fromkeys(table["dtype"])
    ]
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_program(main)
