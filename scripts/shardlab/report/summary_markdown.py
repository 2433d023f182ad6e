"""summary.md: verdict, call, matrix and figures for people."""

from collections.abc import Hashable
from typing import Any

import pandas as pd
from tabulate import tabulate

from shardlab.report import sweep_table
from shardlab.report.summary import MEMORY_KINDS
from shardlab.report.units import readable_bytes
from shardlab.report.verdict import EQUAL, diagnosis, expected, verdict, weights
from shardlab.settings import variants
from shardlab.settings.config import Config
from shardlab.settings.run_identity import flat

VARIANTS, ROWS = 20, 200
"""Maximum variants of strategies and of workloads in a matrix, and rows of a sweep's table: the files have all."""
WIDTH = 80
"""Columns of a terminal."""
GAP = 2
"""Columns between two of a table."""
MEANS = ("mean", "std")
SWEPT = (
    "{:,} variants (results/sweep.csv). Mean ± standard deviation over the seeds; best: the lowest mean validation "
    "loss of its strategy and workload."
)
MEMORY = (
    "Memory is the peak of the rank that held the most: all tensors together, each kind of tensor (the kinds peak at "
    "different times), and the whole process (on a GPU: memory that PyTorch had allocated)."
)
BYTES = "bytes"
FIGURES = {
    "ranks": ("world_size", "{:.0f}"),
    "test loss": ("test_loss", "{:.6f}"),
    "averaged weights": ("ema_test_loss", "{:.6f}"),
    "untrained": ("untrained_test_loss", "{:.4f}"),
    "validation": ("validation_loss", "{:.6f}"),
    "metric": ("metric_value", "{:.4f}"),
    "flips": ("expert_flips", "{:,.0f}"),
    "samples/s": ("samples_per_second", "{:.0f}"),
    "steps": ("steps", "{:.0f}"),
    "wall s": ("wall_seconds", "{:.2f}"),
    "tensors": ("tensor_bytes", BYTES),
    "planned": ("predicted_memory_bytes", BYTES),
    "error": ("memory_error", "{:+.1%}"),
    **{str(kind): (f"{kind}_bytes", BYTES) for kind in MEMORY_KINDS},
    "process": ("peak_memory_bytes", BYTES),
    "sent per step": ("bytes_per_step", BYTES),
    "planned to send": ("predicted_bytes_per_step", BYTES),
}
"""Columns of a workload's table: column of summary.csv, and its form."""
OF_SOME = ("ema_test_loss", "expert_flips")
"""Columns that only some workloads have."""
NOISE = {"rounding alone (twins)": "noise_floor", "single in full precision": "full_precision_rel_diff"}
"""Last rows of the matrix: column of the table."""
WEIGHTS = (
    "Farthest weight: the parameter or buffer whose relative difference from single's is the largest part of its "
    "tolerance; without twins, the largest difference."
)


def call(config: Config) -> str:
    """Return a sentence that describes what was run: site, data, size, seed, ranks and all overrides of the call."""
    parts = [f"site {config.site}", f"data {config.data}", f"size {config.size}", f"seed {config.seed}"]
    parts.append(f"nodes {config.nodes} x {config.ranks_per_node} ranks (more if a strategy needs them)")
    if config.dtype:
        parts.append(f"dtype {config.dtype}")
    for key, values in ((key, values) for product in variants.swept(config) for key, values in product.items()):
        parts.append(f"sweep.{key} = {values[0]} to {values[-1]}, {len(values)} values")
    for name in ("recipe", "site_settings"):
        parts += [f"{name}.{key} = {value}" for key, value in flat(getattr(config, name))]
    if config.container is not None:
        parts.append(f"container {'on' if config.container else 'off'}")
    return f"Call: {', '.join(parts)}."


def axes(table: pd.DataFrame, config: Config, left_out: dict[tuple[str, str], str]) -> tuple[list[str], list[str]]:
    """Return the strategies and workloads that a matrix shows; for a sweep, the first variants of each."""
    if not config.sweep:
        return config.strategies, config.workloads
    runs = [*zip(table.strategy, table.workload, strict=True), *left_out]
    strategies, workloads = (list(dict.fromkeys(run[side] for run in runs)) for side in (0, 1))
    return strategies[:VARIANTS], workloads[:VARIANTS]


def markdown(table: pd.DataFrame, config: Config, left_out: dict[tuple[str, str], str]) -> str:
    """Format verdict, call, matrix of test losses, results of each workload, and what is left out or missing."""
    parts = ["# Summary", "", f"**{verdict(table)[1]}**", ""]
    for sentence in filter(None, (expected(table), diagnosis(table))):
        parts += [sentence, ""]
    parts += [call(config), ""]
    if config.sweep:
        parts += ["## Sweep", "", *_swept(table), ""]
    strategies, workloads = axes(table, config, left_out)
    parts += ["## Test loss of `single`, and the relative difference of the others", ""]
    parts += [_matrix(table, strategies, workloads), ""]
    if table.workload.nunique() > len(workloads):
        parts += [f"The first {len(workloads)} variants; all are in results/summary.csv.", ""]
    if table.weights_rel_diff.notna().any():
        parts += [WEIGHTS, ""]
    parts += [MEMORY, ""]
    for workload in workloads:
        parts += [f"## {workload}", "", _markdown(figures(table[table.workload == workload])), ""]
    if left_out:
        parts += ["## Left out", ""] + [f"- {s} x {w}: {reason}" for (s, w), reason in left_out.items()] + [""]
    open_runs = table[table.status != "done"]
    if len(open_runs):
        parts += ["## Not complete", ""]
        parts += [f"- {row.strategy} x {row.workload}: {row.status}" for row in open_runs.itertuples()] + [""]
    return "\n".join(parts)


def screen(table: pd.DataFrame, config: Config, left_out: dict[tuple[str, str], str]) -> str:
    """Format the end of a call on a terminal: the matrix of test losses, and the verdict."""
    strategies, workloads = axes(table, config, left_out)
    without = {name: reason for (name, _), reason in left_out.items() if name not in {*table.strategy}}
    nowhere = "\n".join(f"Left out: {name} ({reason.rstrip('.')})." for name, reason in without.items())
    rows = {(row["strategy"], row["workload"]): row for row in table.to_dict("records")}
    names = ["test loss", *strategies]
    blocks: list[list[list[str]]] = []
    used = WIDTH
    for workload in workloads:
        column = [workload, *(cell(rows.get((strategy, workload))) for strategy in strategies)]
        width = GAP + max(map(len, column))
        if used + width > WIDTH:
            blocks.append([names])
            used = max(map(len, names))
        blocks[-1].append(column)
        used += width
    tables = [
        tabulate([*zip(*block, strict=True)], headers="firstrow", tablefmt="simple", disable_numparse=True)
        for block in blocks
    ]
    about = "Below single: the relative difference from it.\n" if "single" in strategies else ""
    judgement = "\n".join(filter(None, [nowhere, verdict(table)[1], expected(table), diagnosis(table)]))
    return "\n\n".join([*tables, f"{about}{judgement}"])


def cell(row: dict[Hashable, Any] | None) -> str:
    """Format a cell of a matrix: the test loss of ``single``, the difference of the others from it, and what the
    verdict says if that is not equal; or why there is none.
    """
    if row is None or pd.isna(row["test_loss"]):
        return "-" if row is None else str(row["status"]).partition(":")[0]
    if pd.isna(row["rel_diff"]):
        return f"{row['test_loss']:.4f} (no single)"
    text = f"{row['rel_diff']:.0e}" if row["rel_diff"] else "0"
    text = f"{row['test_loss']:.4f}" if row["strategy"] == "single" else text
    return text if row["equality"] == EQUAL else f"{text} {row['equality']}"


def _swept(table: pd.DataFrame) -> list[str]:
    """Format the best variants and the table over seeds, which is in results/sweep.csv if it is long."""
    found = sweep_table.table(table)
    lines = [f"- {sentence}" for sentence in sweep_table.sentences(found)]
    return [*lines, *[""] * bool(lines), _markdown(swept(found)), "", SWEPT.format(len(found))]


def swept(found: pd.DataFrame) -> pd.DataFrame:
    """Format the first rows of a sweep's table."""
    first = found.sort_values("best", ascending=False, kind="stable").head(ROWS)
    shown = first[["strategy", "workload", *sweep_table.keys(found), "done"]].rename(columns={"done": "runs"})
    for name, form in (("validation", ".6f"), ("test", ".6f"), ("samples_per_second", ".0f")):
        mean, std = (first[f"{name}_{what}"].map(lambda value, form=form: _number(value, form)) for what in MEANS)
        shown[name.replace("_per_second", "/s")] = [f"{m} ± {s}" if s else m for m, s in zip(mean, std, strict=True)]
    return shown.assign(best=first.best.map({True: "best", False: ""}))


def _matrix(table: pd.DataFrame, strategies: list[str], workloads: list[str]) -> str:
    cells = {(row["strategy"], row["workload"]): row for row in table.to_dict("records")}
    rows = [[strategy, *(cell(cells.get((strategy, w))) for w in workloads)] for strategy in strategies]
    rows += noise(table, workloads)
    return tabulate(rows, headers=["strategy", *workloads], tablefmt="pipe", disable_numparse=True)


def noise(table: pd.DataFrame, workloads: list[str]) -> list[list[str]]:
    """Return the last rows of a matrix: how far rounding moves ``single``, and how far low precision does."""
    largest = {name: table.groupby("workload")[column].max() for name, column in NOISE.items()}
    return [
        [name, *(_number(values.get(workload), ".0e") for workload in workloads)]
        for name, values in largest.items()
        if values.notna().any()
    ]


def _markdown(figures: pd.DataFrame) -> str:
    return str(figures.to_markdown(index=False, disable_numparse=True))


def figures(rows: pd.DataFrame) -> pd.DataFrame:
    """Format the results of one workload, one column each, the strategy first; empty if nothing was measured."""
    shown: dict[str, Any] = {"strategy": rows.strategy}
    for title, (column, form) in FIGURES.items():
        if rows[column].notna().any() or column not in OF_SOME:
            form_of = readable_bytes if form == BYTES else form.format
            shown[title] = rows[column].map(lambda value, form_of=form_of: "" if pd.isna(value) else form_of(value))
    if rows.weights_rel_diff.notna().any():
        shown["farthest weight"] = [weights(row) for row in rows.to_dict("records")]
    metric = next((name for name in rows.metric_name.dropna()), "metric")
    return pd.DataFrame(shown).rename(columns={"metric": metric})


def _number(value: Any, form: str) -> str:
    return "" if pd.isna(value) else format(float(value), form)
