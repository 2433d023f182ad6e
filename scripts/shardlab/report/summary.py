"""The table of all runs: one row per run, whose files must belong to the requested run."""

import math
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from shardlab.errors import UserError
from shardlab.records import done, expert_choices, manifest, plan
from shardlab.records.reports import (
    FirstStep,
    Kind,
    NoiseFloorReport,
    TestReport,
    TrainReport,
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
CHOSEN = "chosen_experts"
"""Key of a row, not of the table: experts that the test tokens choose, as in test.json."""
WEIGHTS, OF_TWINS = "compared_weights", "weights_of_twins"
"""Keys of a row, not of the table: its weights.json; the largest difference of each weight of the twins."""
STEPS, STEPS_OF_TWINS = "first_steps", "first_steps_of_twins"
"""Keys of a row, not of the table: its first steps; those of each twin."""
OF_AVERAGES = ["ema_test_loss", "ema_rel_diff"]
"""Columns of runs whose recipe has ema_decay."""
COLUMNS = [
    "strategy",
    "workload",
    "status",
    "test_loss",
    "untrained_test_loss",
    "rel_diff",
    *OF_AVERAGES,
    "noise_floor",
    "full_precision_rel_diff",
    "validation_loss",
    "validation_rel_diff",
    "first_rel_diff",
    "first_tolerance",
    "tolerance",
    "weights_rel_diff",
    "weights_noise_floor",
    "weights_tolerance",
    "weights_parameter",
    "rounded_weights",
    "notes",
    "learned_nothing",
    "equality",
    "diagnosable",
    "expert_choices",
    "expert_flips",
    "noise_floor_flips",
    "metric_name",
    "metric_value",
    "world_size",
    "nodes",
    "steps",
    "wall_seconds",
    "step_seconds_q1",
    "step_seconds_q3",
    "samples_per_second",
    "tensor_bytes",
    *(f"{kind}_bytes" for kind in MEMORY_KINDS),
    "peak_memory_bytes",
    "predicted_memory_bytes",
    "memory_error",
    "bytes_per_step",
    "predicted_bytes_per_step",
]


def judged(
    config: Config, results: Path, tolerance: float | None = None
) -> tuple[pd.DataFrame, dict[tuple[str, str], str]]:
    """Return the judged table of a call's runs, and the runs left out with the reason. ``tolerance``: see
    verdict.judge.
    """
    planned, left_out = resolve.matrix(config)
    return verdict.judge(collect(planned, results, config.noise_floor_runs), tolerance), left_out


def collect(planned: list[Run], results: Path, noise_floor_runs: int) -> pd.DataFrame:
    """Return one row per run; values that were not measured are empty.

    ``noise_floor_runs``: how many each ``single`` has.

    A row whose files belong to another run than the planned one has status ``stale``, with the key that differs, and no
    results; one whose files were edited or damaged has status ``damaged``.
    """
    singles: dict[str, TrainReport] = {}
    rows = {}
    # `single` first: the others are compared with it.
    for run in sorted(planned, key=lambda run: run.strategy != "single"):
        rows[run.strategy, run.workload] = _row(run, results, singles)
    noise_floors = {
        run.workload: _noise_floor(rows["single", run.workload], singles.get(run.workload), results, noise_floor_runs)
        for run in planned
        if run.strategy == "single"
    }
    ordered = [
        rows[run.strategy, run.workload]
        | (noise_floors.get(run.workload, {}) if run.strategy != "single" else {})
        | _flips(rows[run.strategy, run.workload], rows.get(("single", run.workload), {}))
        | _first_steps(run, rows, noise_floors.get(run.workload, {}))
        | _farthest(rows[run.strategy, run.workload], noise_floors.get(run.workload, {}))
        for run in planned
    ]
    return compared(pd.DataFrame(ordered, columns=COLUMNS).convert_dtypes())


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the relative differences, where both the run and its ``single`` have a loss."""
    singles = table[table.strategy == "single"].set_index("workload")
    for loss, difference in (("test_loss", "rel_diff"), ("validation_loss", "validation_rel_diff"), OF_AVERAGES):
        single = table.workload.map(singles[loss])
        # For a reference of 0, use the difference itself.
        table[difference] = (table[loss] - single).abs() / single.abs().replace(0.0, 1.0)
    return table


def _row(run: Run, results: Path, singles: dict[str, TrainReport]) -> dict[str, Any]:
    folder = results / run.strategy / run.workload
    row: dict[str, Any] = {"strategy": run.strategy, "workload": run.workload, "status": "missing"}
    if not folder.with_name(f"{folder.name}.done").exists():
        started = manifest.saved(folder)
        return row | {"status": f"missing: resumable from step {manifest.step_of(started[0])}"} if started else row
    try:
        return row | _figures(run, folder, singles)
    except UserError as error:
        return row | {"status": f"damaged: {error}"}
    except Exception as error:  # one run's files must not prevent the table of all others
        return row | {"status": f"damaged: the reports in {folder} cannot be read ({error!r}); train again."}


def _figures(run: Run, folder: Path, singles: dict[str, TrainReport]) -> dict[str, Any]:
    """Return the columns of a finished run."""
    if reason := done.changed(folder):
        raise UserError(f"{reason}; run the same command again, which repairs it.")
    train = TrainReport.read(folder / "train.json", "train again")
    test = TestReport.read(folder / "test.json", "evaluate again") if (folder / "test.json").exists() else None
    single = singles.get(run.workload, train)
    if key := _differs(run, train, test, _made(train), _made(single)):
        return {"status": f"stale: {key}"}
    if run.strategy == "single":
        singles[run.workload] = train
    weights = _compared_weights(folder, train, singles.get(run.workload))
    row = {
        "status": "not evaluated",
        "validation_loss": train.validation_loss,
        "learned_nothing": train.learned_nothing,
        "diagnosable": not run.script or has_dumps(folder / "script" / DUMPS),
        STEPS: train.first_steps,
        **compare_first_steps(run, train.first_steps, single.first_steps),
        "world_size": train.world_size,
        "nodes": train.nodes,
        "steps": train.steps,
        "wall_seconds": train.wall_seconds,
        **dict(zip(("step_seconds_q1", "step_seconds_q3"), train.step_seconds_quartiles or (), strict=False)),
        "samples_per_second": train.samples_per_second,
        "tensor_bytes": train.held(),
        **{f"{kind}_bytes": train.held(kind) for kind in MEMORY_KINDS},
        "peak_memory_bytes": max(train.peak_memory_bytes) if train.peak_memory_bytes else None,
        **_foreseen(run, folder.parents[1], train),
        "bytes_per_step": train.bytes_per_step,
        WEIGHTS: weights,
        "notes": _notes(run, folder.parents[1] / f"init/{resolve.weights_of(run.workload)}.safetensors", train),
        "rounded_weights": weights
        and rounded_weights(run, weights.changed, weights.rounded, weights.rounded_in_single),
    }
    if test:
        row |= {
            "status": "done",
            "test_loss": test.loss,
            "untrained_test_loss": test.untrained_loss,
            "ema_test_loss": test.ema_loss,
            "metric_name": test.metric_name,
            "metric_value": test.metric_value,
            CHOSEN: test.expert_choices,
        }
    return row


def _first_steps(run: Run, rows: dict[tuple[str, str], dict[str, Any]], noise_floor: dict[str, Any]) -> dict[str, Any]:
    """Return the first steps of a row compared with those of ``single``, by the twins' if there are any."""
    single = rows.get(("single", run.workload), {}).get(STEPS)
    steps = rows[run.strategy, run.workload].get(STEPS)
    if single is None or steps is None:
        return {}
    return compare_first_steps(run, steps, single, noise_floor.get(STEPS_OF_TWINS, []))


def _flips(row: dict[str, Any], single: dict[str, Any]) -> dict[str, int]:
    """Return the number of a run's expert choices, and of those that ``single`` does not make; empty without both."""
    chosen: list[Any] = [row.get(CHOSEN), single.get(CHOSEN)]
    if None in chosen:
        return {}
    flips, choices = expert_choices.count_flips(*chosen)
    return {"expert_choices": choices, "expert_flips": flips}


def _compared_weights(folder: Path, train: TrainReport, single: TrainReport | None) -> WeightsReport | None:
    """Return how a run's weights differ from those of ``single``; None unless exactly these were compared."""
    path = folder / "weights.json"
    if single is None or not path.exists():
        return None
    report = WeightsReport.read(path, "remove it, then run the same command again")
    compared = (report.weights, report.initial_weights, report.single_weights)
    return report if compared == (train.weights, single.initial_weights, single.weights) else None


def _farthest(row: dict[str, Any], noise_floor: dict[str, Any]) -> dict[str, Any]:
    report = row.get(WEIGHTS)
    if report is None:
        return {}
    return farthest_weight(report.differences, report.exact, noise_floor.get(OF_TWINS, {}), row["tolerance"])


def farthest_weight(
    differences: dict[str, float], exact: Collection[str], twins: dict[str, float], tolerance: float | None
) -> dict[str, Any]:
    """Return the weight whose difference from ``single`` is the largest part of its tolerance, and both.

    ``exact``: those that have to be equal. The others may differ by MULTIPLE times the ``tolerance`` of a loss, or by
    MULTIPLE times the ``twins``' largest difference of the same weight. Only twins show which weights are noise: where
    a gradient is nothing but rounding (a key's bias before the softmax, a bias before batch norm), Adam takes full
    steps in random directions. Without twins these have no tolerance. In low precision there is no ``tolerance``, and
    twins alone count.
    """
    if not differences:
        return {}
    tolerances = {name: verdict.MULTIPLE * max(tolerance or 0.0, apart) for name, apart in twins.items()}
    tolerances |= dict.fromkeys(exact, 0.0)

    def part(name: str) -> tuple[float, float]:
        difference, most = differences[name], tolerances.get(name)
        if not difference or most is None:
            return 0.0, difference
        return difference / most if most else math.inf, difference

    name = max(differences, key=part)
    return {
        "weights_rel_diff": differences[name],
        "weights_parameter": name,
        "weights_tolerance": tolerances.get(name) if twins or differences[name] else None,
        "weights_noise_floor": twins.get(name),
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


def _made(train: TrainReport) -> dict[str, str]:
    return {"data": train.identity.data, "initial weights": train.initial_weights}


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


def _foreseen(run: Run, results: Path, train: TrainReport) -> dict[str, Any]:
    """Return the planned memory of this run, the plan's relative error, and the bytes that it plans to send."""
    if (made := plan.find(run, *plan.places(results, run))) is None:
        return {}
    measured = train.held()
    return {
        "predicted_memory_bytes": made.predicted_memory_bytes,
        "memory_error": made.predicted_memory_bytes / measured - 1 if measured else None,
        "predicted_bytes_per_step": made.predicted_bytes_per_step,
    }


def _differs(
    run: Run, train: TrainReport, test: TestReport | None, made: dict[str, str], shared: dict[str, str]
) -> str | None:
    """Return the first key in which the reports differ from ``run``; None if they do not."""
    ours, its = (run_identity.of_run(each) for each in (run.model_dump(mode="json"), train.settings))
    if key := run_identity.difference(ours, its):
        return key
    planned = run_identity.identity_of(run, train.identity.data)
    if train.identity != planned:
        return "identity"
    if key := run_identity.difference(shared, made):
        return key
    if test and test.identity != planned:
        return "evaluated with other settings or data"
    if test and test.weights != train.weights:
        return "evaluated other weights"
    return None


def _noise_floor(
    row: dict[str, Any], single: TrainReport | None, results: Path, noise_floor_runs: int
) -> dict[str, Any]:
    """Return the spread of the twins of a workload's ``single``, also in expert choices and weights; empty without
    twins of exactly this run.
    """
    path = results / "noise_floor" / f"{row['workload']}.json"
    if single is None or row["status"] != "done":
        return {}
    try:
        report = NoiseFloorReport.read(path, "make it again")
    except UserError:
        return {}
    made = (report.identity.numbers, report.identity.data, report.initial_weights, report.workload, report.scale)
    planned = (single.identity.numbers, single.identity.data, single.initial_weights, single.workload)
    rounding = PRECISIONS[Run.model_validate(single.settings).recipe.arithmetic].rounding
    if made != (*planned, rounding) or not len(report.twins) == noise_floor_runs > 0:
        return {}
    twins = [*report.twins, *filter(None, [report.full_precision])]
    pairs = [
        pair
        for twin in twins
        for pair in ((twin.test_loss, row["test_loss"]), (twin.validation_loss, row["validation_loss"]))
    ]
    pairs += [(twin.ema_loss, row["ema_test_loss"]) for twin in twins if twin.ema_loss is not None]
    found: dict[str, Any] = {
        "noise_floor": max(verdict.relative(*pair) for pair in pairs),
        STEPS_OF_TWINS: [twin.first_steps for twin in twins],
    }
    if report.full_precision:
        found["full_precision_rel_diff"] = verdict.relative(report.full_precision.test_loss, row["test_loss"])
    if report.single_weights == single.weights:
        found[OF_TWINS] = {name: max(twin.weights[name] for twin in twins) for name in report.twins[0].weights}
    flips = [_flips({CHOSEN: twin.expert_choices}, row) for twin in twins]
    if all(flips):
        found["noise_floor_flips"] = max(each["expert_flips"] for each in flips)
    return found
