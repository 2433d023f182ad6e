#!/usr/bin/env python3
"""Train each workload with faults of known size, and judge each as the summary
does: what the verdict alone detects.

Prints the table of docs/equality.md. Each fault acts on `single` as it would on
two ranks: the weights see the same, and no check but the verdict is in its way.
Those named after an issue of DeepSpeed do what it reports, with four
micro-batches per step. In low precision `single` has twins, as in a run.
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

from trainers.judged import configured, prepare, rows, twins  # type: ignore[import-not-found]

from shardlab.errors import UserError, run_program
from shardlab.files import write_text
from shardlab.records.reports import FIRST_STEPS
from shardlab.report.verdict import DIFFERENCES, EQUAL, LOW_MULTIPLE, ROUNDING, judge
from shardlab.settings import load, resolve
from shardlab.settings.config import Config
from shardlab.settings.precisions import LOW, PRECISIONS, STATES
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
    _with_parts(engine, lambda count, number: [(0, count // 2, 2.0)])


def dropped(engine: Engine) -> None:
    """Count one sample of the second step only in the number of targets."""
    _with_parts(engine, lambda count, number: [(0, count - (number == 1), 1.0)])


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


def one_use_lost(engine: Engine) -> None:
    """Lose the gradient of each use but the first of a module that is used several times in a step."""
    for module in used_again(engine):
        calls = iter(range(10**9))

        def once(*inputs: Any, module: Any = module, forward: Any = module.forward, calls: Any = calls) -> Any:
            if next(calls) % 2 == 0 or not module.training:
                return forward(*inputs)
            detached = {name: value.detach() for name, value in module.named_parameters()}
            with mock.patch.dict(module._parameters, detached):
                return forward(*inputs)

        module.forward = once


def last_micro_batch_not_reduced(engine: Engine) -> None:
    """Add the last of four micro-batches after the reduction: only this rank's half of it counts."""
    _with_parts(engine, lambda count, number: [(0, count * 3 // 4, 1.0), (count * 3 // 4, count * 7 // 8, 2.0)])


def micro_batches_lost(engine: Engine) -> None:
    """Keep the gradient of the first of four micro-batches alone."""
    _with_parts(engine, lambda count, number: [(0, count // 4, 1.0)])


def a_third(engine: Engine) -> None:
    """Take a third of the gradient, as its norm was."""
    _with_scale(engine, lambda number: 1 / 3)


def unscaled(engine: Engine) -> None:
    """Divide the gradients by a loss scale of 65536 that the loss was never multiplied with."""
    _with_scale(engine, lambda number: 2.0**-16)


def without_master_weights(engine: Engine) -> None:
    """Round the weights to bf16 after each step, as a training that has them in bf16 alone."""
    update = engine.step

    def rounded(rate: float) -> Any:
        norm = update(rate)
        for parameter in engine.models[0].parameters():
            parameter.data.copy_(parameter.data.bfloat16())
        return norm

    engine.step = rounded


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
LOW_FAULTS: dict[str, tuple[Fault, str]] = {
    "no float32 master weights": (without_master_weights, ""),
    "DeepSpeed #8224: module used twice": (one_use_lost, "parity: gradients at step 0"),
    "DeepSpeed #7985: last micro-batch not reduced": (last_micro_batch_not_reduced, "parity: gradients at step 0"),
    "DeepSpeed #7967: micro-batches lost": (micro_batches_lost, "parity: gradients at step 0"),
    "DeepSpeed #7718: a third of the gradient": (a_third, "parity: gradients at step 0"),
    "DeepSpeed #7837: divided by 65536": (unscaled, "parity: gradients at step 0"),
}
"""The same of trainings in low precision, and what DeepSpeed did there."""


def _before_update(engine: Engine, change: Callable[[int, float], float]) -> None:
    """Call ``change`` with step and learning rate before each update; use the learning rate it returns."""
    update, number = engine.step, iter(range(10**9))
    engine.step = lambda rate: update(change(next(number), rate))


def _with_scale(engine: Engine, factor: Callable[[int], float]) -> None:
    """Multiply the gradients of a step, not the loss that is logged."""
    add, number = engine.forward_backward, iter(range(10**9))
    engine.forward_backward = lambda micro, scale, *, last: add(micro, scale * factor(next(number)), last=last)


def _with_parts(engine: Engine, choose: Callable[[int, int], list[tuple[int, int, float]]]) -> None:
    """Take the gradient of some samples of a step alone; log the loss of all, count all.

    ``choose`` takes the number of samples and the step, and returns first sample, end and factor of each part.
    """
    add, number, count = engine.forward_backward, iter(range(10**9)), engine.task.count

    def of_parts(micro: Any, scale: float, *, last: bool) -> Any:
        loss = engine.loss(micro).detach()
        counts = iter([True])
        engine.task.count = lambda outputs, part: next(counts, False) and count([None] * micro.count, micro)
        parts = [part for part in choose(micro.count, next(number)) if part[0] < part[1]]
        for first, end, factor in parts:
            batch = {name: values[first:end] for name, values in micro.batch.items()}
            part = replace(micro, batch=batch, count=end - first, rows=end - first)
            add(part, scale * factor, last=last and (first, end, factor) == parts[-1])
        return loss

    engine.forward_backward = of_parts


def used_again(engine: Engine) -> list[Any]:
    """Return the modules with parameters of their own that the model's forward pass uses twice."""
    return [
        module for name, module in engine.models[0].named_modules() if name in USED_AGAIN.get(engine.run.workload, ())
    ]


USED_AGAIN = {"xsum": ("embedding",)}
"""Workload: its modules that are used twice in a step, for document and summary."""


def inapplicable(name: str, run: Run) -> str:
    """Return why a fault does not apply to a run: only Adam corrects a bias; empty if it does."""
    if "bias" in name and not run.recipe.optimizer.name.startswith("adam"):
        return "no Adam"
    return "none used twice" if "used twice" in name and run.workload not in USED_AGAIN else ""


def judged(run: Run, place: Path) -> pd.DataFrame:
    """Return judged rows of a workload's ``single`` and of its training with each fault."""
    from shardlab import parallel
    from shardlab.train import loop

    prepare(run, place)
    build, last = parallel.build, count_steps(run, place) - 1
    low = not PRECISIONS[run.recipe.arithmetic].is_full
    known = FAULTS | LOW_FAULTS if low else FAULTS
    faults = {"single": nothing} | {name: fault for name, (fault, _) in known.items() if not inapplicable(name, run)}
    trainings = {name: (run, place / "initial", fault) for name, fault in faults.items()}
    trainings |= {name: (*each, nothing) for name, each in twins(run, place, Config().noise_floor_runs * low).items()}
    for name, (training, initial, fault) in trainings.items():

        def faulty(*arguments: Any, fault: Fault = fault) -> Engine:
            engine: Any = build(*arguments)
            engine.last_step = last
            fault(engine)
            return engine

        (place / name).mkdir()
        with mock.patch.object(parallel, "build", faulty), redirect_stdout(io.StringIO()):
            loop.train(training, place / "data", initial, place / name, {})
    return judge(rows(run, place, list(trainings)))


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
    end = max(row[each] for each in DIFFERENCES if not pd.isna(row[each]))
    if row["equality"] in (EQUAL, ROUNDING):
        return f"- ({max(row['first_rel_diff'], end):.0e})"
    if row["first_rel_diff"] > row["first_tolerance"]:
        return f"start {row['first_rel_diff']:.0e}"
    if not pd.isna(row["rounded_weights"]):
        return f"values {max(row['first_rel_diff'], end):.0e}"
    if pd.isna(row["tolerance"]) and end <= LOW_MULTIPLE * row["noise_floor"]:
        return f"weights {row['weights_rel_diff']:.0e}"
    return f"end {end:.0e}"


def main() -> None:
    """Train, judge, print and write the table; fail if a training without a fault is not equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["mlp", "mnist", "xsum", "vit", "llama2"])
    parser.add_argument(
        "--precisions", nargs="+", choices=[*STATES, *LOW], default=["float32", "float64"], metavar="PRECISION"
    )
    parser.add_argument("--output", type=Path, default=Path("results/power.csv"), help="CSV file of every training")
    args = parser.parse_args()
    from shardlab.runtime import distributed

    distributed.start(SiteRuntime())
    tables = []
    for workload in args.workloads:
        for precision in args.precisions:
            run = resolve.run(configured(precision), "single", workload)
            with tempfile.TemporaryDirectory() as folder:
                tables.append(judged(run, Path(folder)).assign(precision=precision))
            write_text(args.output, pd.concat(tables).to_csv(index=False))
    table = pd.concat(tables, ignore_index=True)
    print(f"start: first {FIRST_STEPS} steps; end: test or validation loss; weights: of a parameter;")
    print("values: weights are rounded; -: not seen")
    print("(largest difference of first steps and losses).\n")
    print(shown(table, args.workloads))
    if not table[table.strategy == "none"].equality.isin([EQUAL, ROUNDING]).all():
        raise UserError("a training without a fault is not equal to single.")


def shown(table: pd.DataFrame, workloads: list[str]) -> str:
    """Return a row per fault and precision, a column per workload, and the check that catches it otherwise."""

    def reason(name: str, workload: str) -> str:
        return inapplicable(name, resolve.run(load.config({}), "single", workload))

    cells = {(row["strategy"], row["precision"], row["workload"]): cell(row) for row in table.to_dict("records")}
    lines = [
        {"fault": name, "precision": precision}
        | {workload: cells.get((name, precision, workload)) or reason(name, workload) for workload in workloads}
        | {"otherwise caught by": check}
        for name, (_, check) in (FAULTS | LOW_FAULTS).items()
        for precision in dict.fromkeys(table["precision"])
        if name in FAULTS or not PRECISIONS[precision].is_full
    ]
    return str(pd.DataFrame(lines).to_markdown(index=False, disable_numparse=True))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run_program(main)
