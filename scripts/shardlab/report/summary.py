"""The table of all runs: one row per run, whose files must belong to the requested run."""

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from shardlab.errors import UserError
from shardlab.records import done, manifest, plan
from shardlab.records.expert_choices import count_flips
from shardlab.records.reports import (
    FirstStep,
    Kind,
    NoiseFloorReport,
    TestReport,
    TrainReport,
    Twin,
    WeightsReport,
    initial_report,
)
from shardlab.records.script_lines import DUMPS, has_dumps
from shardlab.report import verdict
from shardlab.settings import model_rules, resolve, run_identity
from shardlab.settings.config import Config
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run

MEMORY_KINDS: tuple[Kind, ...] = ("weights", "master_weights", "gradients", "optimizer", "activations")
"""Kinds of tensors with separate columns: the maximum over the ranks."""
OF_AVERAGES = ["ema_test_loss", "ema_rel_diff"]
"""Columns of runs whose recipe has ema_decay."""


@dataclass
class Row:
    """A row of the table, and of summary.csv; a value that was not measured is None."""

    strategy: str
    workload: str
    status: str
    test_loss: float | None = None
    untrained_test_loss: float | None = None
    rel_diff: float | None = None
    ema_test_loss: float | None = None
    ema_rel_diff: float | None = None
    noise_floor: float | None = None
    full_precision_rel_diff: float | None = None
    validation_loss: float | None = None
    validation_rel_diff: float | None = None
    first_rel_diff: float | None = None
    first_tolerance: float | None = None
    tolerance: float | None = None
    weights_rel_diff: float | None = None
    weights_noise_floor: float | None = None
    weights_tolerance: float | None = None
    weights_parameter: str | None = None
    weights_not_compared: int | None = None
    rounded_weights: str | None = None
    notes: str | None = None
    learned_nothing: str | None = None
    equality: str | None = None
    diagnosable: bool | None = None
    expert_choices: int | None = None
    expert_flips: int | None = None
    noise_floor_flips: int | None = None
    metric_name: str | None = None
    metric_value: float | None = None
    world_size: int | None = None
    nodes: int | None = None
    steps: int | None = None
    wall_seconds: float | None = None
    step_seconds_q1: float | None = None
    step_seconds_q3: float | None = None
    samples_per_second: float | None = None
    tensor_bytes: int | None = None
    weights_bytes: int | None = None
    master_weights_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None
    peak_memory_bytes: int | None = None
    predicted_memory_bytes: int | None = None
    memory_error: float | None = None
    bytes_per_step: float | None = None
    predicted_bytes_per_step: float | None = None


COLUMNS = [field.name for field in fields(Row)]


@dataclass(frozen=True)
class Single:
    """What ``single`` left, with which the runs of its workload are compared."""

    train: TrainReport
    test: TestReport | None
    noise_floor: NoiseFloorReport | None
    """None unless it was evaluated."""

    @property
    def twins(self) -> list[Twin]:
        """All of them, of which full precision is one."""
        found = self.noise_floor
        return [*found.twins, *filter(None, [found.full_precision])] if found else []

    def spread(self) -> dict[str, Any]:
        """Return the columns of the twins; empty without any."""
        if not (self.test and self.noise_floor):
            return {}
        pairs = [(twin.test_loss, self.test.loss) for twin in self.twins]
        pairs += [(twin.validation_loss, self.train.validation_loss) for twin in self.twins]
        if (average := self.test.ema_loss) is not None:
            pairs += [(twin.ema_loss, average) for twin in self.twins if twin.ema_loss is not None]
        columns = {"noise_floor": max(verdict.relative(*pair) for pair in pairs)}
        if full := self.noise_floor.full_precision:
            columns["full_precision_rel_diff"] = verdict.relative(full.test_loss, self.test.loss)
        choices = [twin.expert_choices for twin in self.twins if twin.expert_choices]
        if self.test.expert_choices and len(choices) == len(self.twins):
            columns["noise_floor_flips"] = max(count_flips(each, self.test.expert_choices)[0] for each in choices)
        return columns

    def weights_of_twins(self) -> dict[str, float]:
        """Return the largest difference of each weight; empty without twins of these weights."""
        found = self.noise_floor
        if not found or found.single_weights != self.train.weights:
            return {}
        return {name: max(twin.weights[name] for twin in self.twins) for name in found.twins[0].weights}


def judged(config: Config, results: Path) -> tuple[pd.DataFrame, dict[tuple[str, str], str]]:
    """Return the judged table of a call's runs, and the runs left out with the reason."""
    planned, left_out = resolve.matrix(config)
    return verdict.judge(collect(planned, results, config.noise_floor_runs)), left_out


def collect(planned: list[Run], results: Path, noise_floor_runs: int) -> pd.DataFrame:
    """Return one row per run; values that were not measured are empty.

    ``noise_floor_runs``: how many each ``single`` has.

    A row whose files belong to another run than the planned one has status ``stale``, with the key that differs, and no
    results; one whose files were edited or damaged has status ``damaged``.
    """
    singles: dict[str, Single] = {}
    # `single` first: the others are compared with it.
    ordered = sorted(planned, key=lambda run: run.strategy != "single")
    rows = {(run.strategy, run.workload): _row(run, results, singles, noise_floor_runs) for run in ordered}
    table = pd.DataFrame([rows[run.strategy, run.workload] for run in planned], columns=COLUMNS)
    return compared(table.convert_dtypes())


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the relative differences, where both the run and its ``single`` have a loss."""
    singles = table[table.strategy == "single"].set_index("workload")
    for loss, difference in (("test_loss", "rel_diff"), ("validation_loss", "validation_rel_diff"), OF_AVERAGES):
        single = table.workload.map(singles[loss])
        # For a reference of 0, use the difference itself.
        table[difference] = (table[loss] - single).abs() / single.abs().replace(0.0, 1.0)
    return table


def _row(run: Run, results: Path, singles: dict[str, Single], noise_floor_runs: int) -> Row:
    """Return a run's row; add a finished ``single`` to ``singles``."""
    folder = results / run.strategy / run.workload
    if not folder.with_name(f"{folder.name}.done").exists():
        started = manifest.saved(folder)
        status = f"missing: resumable from step {manifest.step_of(started[0])}" if started else "missing"
        return Row(run.strategy, run.workload, status)
    try:
        return _finished(run, folder, singles, noise_floor_runs)
    except UserError as error:
        return Row(run.strategy, run.workload, f"damaged: {error}")
    except Exception as error:  # one run's files must not prevent the table of all others
        why = f"damaged: the reports in {folder} cannot be read ({error!r}); train again."
        return Row(run.strategy, run.workload, why)


def _finished(run: Run, folder: Path, singles: dict[str, Single], noise_floor_runs: int) -> Row:
    """Return the row of a finished run."""
    results = folder.parents[1]
    if reason := done.changed(folder):
        raise UserError(f"{reason}; run the same command again, which repairs it.")
    train = TrainReport.read(folder / "train.json", "train again")
    test = TestReport.read(folder / "test.json", "evaluate again") if (folder / "test.json").exists() else None
    single = singles.get(run.workload)
    if key := _differs(run, train, test, single.train if single else train):
        return Row(run.strategy, run.workload, f"stale: {key}")
    if run.strategy == "single":
        twinned = _twins(results / "noise_floor" / f"{run.workload}.json", train, noise_floor_runs) if test else None
        single = singles[run.workload] = Single(train, test, twinned)
    held: dict[str, Any] = {f"{kind}_bytes": train.held(kind) for kind in MEMORY_KINDS}
    row = Row(
        run.strategy,
        run.workload,
        "done" if test else "not evaluated",
        validation_loss=train.validation_loss,
        learned_nothing=train.learned_nothing,
        diagnosable=not run.script or has_dumps(folder / "script" / DUMPS),
        world_size=train.world_size,
        nodes=train.nodes,
        steps=train.steps,
        wall_seconds=train.wall_seconds,
        samples_per_second=train.samples_per_second,
        tensor_bytes=train.held(),
        peak_memory_bytes=max(train.peak_memory_bytes) if train.peak_memory_bytes else None,
        bytes_per_step=train.bytes_per_step,
        notes=_notes(run, results / f"init/{resolve.weights_of(run.workload)}.safetensors", train),
        **held,
        **compare_first_steps(
            run,
            train.first_steps,
            single.train.first_steps if single else [],
            [twin.first_steps for twin in single.twins] if single else [],
        ),
        **(single.spread() if single and run.strategy != "single" else {}),
    )
    if train.step_seconds_quartiles:
        row.step_seconds_q1, row.step_seconds_q3 = train.step_seconds_quartiles
    if made := plan.find(run, results):
        row.predicted_memory_bytes = made.predicted_memory_bytes
        row.predicted_bytes_per_step = made.predicted_bytes_per_step
        row.memory_error = made.predicted_memory_bytes / row.tensor_bytes - 1 if row.tensor_bytes else None
    if test:
        row.test_loss, row.untrained_test_loss, row.ema_test_loss = test.loss, test.untrained_loss, test.ema_loss
        row.metric_name, row.metric_value = test.metric_name, test.metric_value
        if test.expert_choices and single and single.test and single.test.expert_choices:
            row.expert_flips, row.expert_choices = count_flips(test.expert_choices, single.test.expert_choices)
    if single and (weights := _compared_weights(folder, train, single.train)):
        row.rounded_weights = rounded_weights(run, weights.changed, weights.rounded, weights.rounded_in_single)
        twins = single.weights_of_twins()
        return replace(row, **farthest_weight(weights.differences, weights.exact, twins, row.tolerance))
    return row


def _compared_weights(folder: Path, train: TrainReport, single: TrainReport) -> WeightsReport | None:
    """Return how a run's weights differ from those of ``single``; None unless exactly these were compared."""
    path = folder / "weights.json"
    if not path.exists():
        return None
    report = WeightsReport.read(path, "remove it, then run the same command again")
    compared = (report.weights, report.initial_weights, report.single_weights)
    return report if compared == (train.weights, single.initial_weights, single.weights) else None


def farthest_weight(
    differences: dict[str, float], exact: Collection[str], twins: dict[str, float], tolerance: float | None
) -> dict[str, Any]:
    """Return the weight whose difference from ``single`` is the largest part of its tolerance, and both.

    ``exact``: those that have to be equal. The others may differ by MULTIPLE times the ``tolerance`` of a loss, or by
    MULTIPLE times the ``twins``' largest difference of the same weight. Only twins show which weights are noise: where
    a gradient is nothing but rounding (a key's bias before the softmax, a bias before batch norm), Adam takes full
    steps in random directions. Without twins these have no tolerance. One that has a tolerance of its own size, and is
    within, is not compared, and counted. In low precision there is no ``tolerance``, and twins alone count.
    """
    if not differences:
        return {}
    tolerances = {name: verdict.MULTIPLE * max(tolerance or 0.0, apart) for name, apart in twins.items()}
    tolerances |= dict.fromkeys(exact, 0.0)
    compared = [name for name, apart in differences.items() if tolerances.get(name, 0.0) < max(1.0, apart)]

    def part(name: str) -> tuple[float, float]:
        difference, most = differences[name], tolerances.get(name)
        if not difference or most is None:
            return 0.0, difference
        return difference / most if most else math.inf, difference

    name = max(compared or differences, key=part)
    return {
        "weights_rel_diff": differences[name],
        "weights_parameter": name,
        "weights_tolerance": tolerances.get(name) if twins or differences[name] else None,
        "weights_noise_floor": twins.get(name),
        "weights_not_compared": len(differences) - len(compared),
    }


def _notes(run: Run, initial: Path, train: TrainReport) -> str | None:
    """Return what keeps a run from being equal, by what the model of its ``initial`` weights contains."""
    report = initial_report(initial)
    if report is None or report.weights != train.initial_weights:
        return None
    return " ".join(model_rules.notes(run, report.properties)) or None


def rounded_weights(run: Run, changed: int, rounded: int, in_single: int) -> str | None:
    """Return what shows that a run's weights are rounded to the type of its layers' arithmetic; None if nothing does.

    The counts are those of weights.json. By chance bfloat16 represents one float32 value in 65,536.
    """
    if rounded - in_single <= verdict.ROUNDED * changed:
        return None
    return (
        f"weights are rounded to {PRECISIONS[run.recipe.arithmetic].dtype}: {rounded:,} of {changed:,} values, single "
        f"{in_single:,}; keep {run.recipe.dtype} master weights"
    )


def compare_first_steps(
    run: Run, steps: list[FirstStep], single: list[FirstStep], twins: Sequence[list[FirstStep]] = ()
) -> dict[str, Any]:
    """Return the largest relative difference to ``single`` of the first losses and the first gradient norm; tolerances.

    After an update the norm is meaningless: Adam takes full steps from gradients that are only rounding noise. Steps
    that either run skipped, as they were not finite, are not compared.

    In low precision ``twins`` show what is noise, also in later norms. Losses may differ by LOW_MULTIPLE times the
    largest difference of a twin's losses, and norms by that of the norms; what is returned is the larger part of its
    tolerance. Without twins there is no tolerance.
    """
    precision = PRECISIONS[run.recipe.arithmetic]
    first = {"tolerance": precision.tolerance, "first_tolerance": precision.first_tolerance}
    differences = _of_steps(steps, single, "loss") + _of_steps(steps[:1], single, "grad_norm")
    if precision.is_full or not twins:
        return first | {"first_rel_diff": max(differences, default=None)}
    pairs = [
        (
            max(_of_steps(steps, single, kind), default=0.0),
            max(max(_of_steps(twin, single, kind), default=math.inf) for twin in twins),
        )
        for kind in ("loss", "grad_norm")
    ]
    difference, noise = max(pairs, key=lambda pair: pair[0] / (pair[1] or sys.float_info.min))
    return first | {"first_rel_diff": difference, "first_tolerance": verdict.LOW_MULTIPLE * noise}


def _of_steps(steps: list[FirstStep], single: list[FirstStep], kind: Literal["loss", "grad_norm"]) -> list[float]:
    pairs = [(getattr(own, kind), getattr(other, kind)) for own, other in zip(steps, single, strict=False)]
    return [verdict.relative(own, other) for own, other in pairs if own is not None and other is not None]


def _differs(run: Run, train: TrainReport, test: TestReport | None, single: TrainReport) -> str | None:
    """Return the first key in which the reports differ from ``run``, or from ``single``; None if they do not."""
    ours, its = (run_identity.of_run(each) for each in (run.model_dump(mode="json"), train.settings))
    if key := run_identity.difference(ours, its):
        return key
    planned = run_identity.identity_of(run, train.identity.data)
    if train.identity != planned:
        return "identity"
    if train.identity.data != single.identity.data:
        return "data"
    if train.initial_weights != single.initial_weights:
        return "initial weights"
    if test and test.identity != planned:
        return "evaluated with other settings or data"
    if test and test.weights != train.weights:
        return "evaluated other weights"
    return None


def _twins(path: Path, single: TrainReport, count: int) -> NoiseFloorReport | None:
    """Return the twins of exactly this training, if there are ``count`` of them."""
    try:
        report = NoiseFloorReport.read(path, "make it again")
    except UserError:
        return None
    made = (report.identity.numbers, report.identity.data, report.initial_weights, report.workload, report.scale)
    planned = (single.identity.numbers, single.identity.data, single.initial_weights, single.workload)
    rounding = PRECISIONS[Run.model_validate(single.settings).recipe.arithmetic].rounding
    return report if made == (*planned, rounding) and len(report.twins) == count > 0 else None
