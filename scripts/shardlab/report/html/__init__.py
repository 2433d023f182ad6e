"""report.html: the results of a call on one page that opens offline."""

import json
import re
from collections.abc import Hashable
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from shardlab.report import summary_markdown, sweep_table
from shardlab.report.bill import Bill
from shardlab.report.charts import ANCHORS, COMPARISON, PER_STRATEGY, PER_WORKLOAD, SWEEP, load
from shardlab.report.families import FAMILIES
from shardlab.report.recommendation import advice, fastest, measured, smallest, trade
from shardlab.report.run_data import RunData, Shown
from shardlab.report.strategy_docs import explained
from shardlab.report.summary import MEMORY_KINDS
from shardlab.report.units import readable_bytes
from shardlab.report.verdict import EQUAL, REPORTED, ROUNDING, SUSPICIOUS, UNEQUAL, flips, pages, verdict
from shardlab.report.workload_order import order_workloads
from shardlab.settings.config import Config

HERE = Path(__file__).parent
PAGES = 40
"""Strategies with their own charts; more would make the page slow."""
STATES = {
    EQUAL: "first steps, final losses and weights are within the tolerance, or rounding explains the difference.",
    ROUNDING: "rounding alone moves one device just as far, or can send a token to another expert.",
    UNEQUAL: "neither of these.",
    SUSPICIOUS: "the run learned nothing, so its loss proves nothing.",
    REPORTED: "low precision that cannot be judged: without twins, or by the weights of experts.",
}
LEADS = {
    "test loss": "quality",
    "samples/s": "time",
    "tensors": "memory",
    "peak memory": "memory",
    "sent per step": "traffic",
}
"""Column that a group of columns begins with, and that stays when the page folds it: name of the group."""
Drawn = dict[str, tuple[pd.DataFrame, dict[str, Any]]]
"""Name of a chart, ``loss.llama2``: its table and its Vega-Lite specification."""


def charts(run_data: RunData, workloads: list[str]) -> Drawn:
    """Draw all charts for which the runs have data."""
    scopes: list[tuple[str, RunData, tuple[str, ...]]] = [
        (name, run_data.for_workload(name), PER_WORKLOAD) for name in workloads
    ]
    scopes += [(name, run_data.under(name), PER_STRATEGY) for name in strategies(run_data)]
    parts = [(name, f"{name}.{scope}", part) for scope, part, names in scopes for name in names]
    drawn: Drawn = {}
    for name, key, part in parts + [(name, name, run_data) for name in SWEEP]:
        chart = load(name)
        table = chart.table(part)
        if len(table):
            drawn[key] = table, chart.draw(table).properties(description=chart.CAPTION).to_dict()
    return drawn


def strategies(run_data: RunData) -> list[str]:
    """Return the first strategies that have runs, in the order of the configuration: those that get a page."""
    there = {run.train.strategy for run in run_data.runs}
    return [name for name in dict.fromkeys(run_data.table.strategy) if name in there][:PAGES]


def html(
    run_data: RunData,
    drawn: Drawn,
    config: Config,
    left_out: dict[tuple[str, str], str],
    accounting: dict[str, dict[str, str]],
    billed: Bill,
    results: Path = Path("results"),
) -> str:
    """Render the page for a folder of ``results``. ``accounting``: Slurm's record of each job."""
    good, sentence = verdict(run_data.table)
    strategies_shown, workloads = summary_markdown.axes(run_data.table, config, left_out)
    workloads = order_workloads(workloads, run_data)
    matrix, notes = _matrix(run_data.table, strategies_shown, workloads, left_out)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"code": _code, "breakable": _breakable, "groups": _groups}
    return environment.from_string((HERE / "template.html").read_text(encoding="utf-8")).render(
        good=good,
        sentence=sentence,
        flips=flips(run_data.table),
        diagnoses=[(name, page, (results / page).exists()) for name, page in pages(run_data.table).items()],
        call=summary_markdown.call(config),
        origin=_origin(run_data),
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        about_columns=f"{summary_markdown.WEIGHTS} {summary_markdown.MEMORY}",
        states={state: text for state, text in STATES.items() if state in set(run_data.table.equality.dropna())},
        best=_best(run_data.table, workloads),
        compared="single" in strategies_shown,
        matrix=matrix,
        notes=notes,
        noise=summary_markdown.noise(run_data.table, workloads),
        overview=_overview(workloads, drawn),
        families=[{"name": name} | asdict(FAMILIES[name]) for name in FAMILIES if name in run_data.families.values()],
        sweep=_sweep(run_data.table, drawn) if config.sweep else None,
        workloads=[_workload(run_data.for_workload(name), name, drawn) for name in workloads],
        pages=PAGES,
        strategies=[_strategy(run_data.under(name), name, drawn) for name in strategies(run_data)],
        faults=_faults(run_data),
        billed=billed,
        results="results",
        made=f"Shardlab with Altair {version('altair')}",
        style=_raw((HERE / "style.css").read_text(encoding="utf-8")),
        script=_raw((HERE / "page.js").read_text(encoding="utf-8")),
        vega=_raw(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
        specs=_json({key: specification for key, (_, specification) in drawn.items()}),
        anchors=_json(ANCHORS),
        details=_json({run.name: _details(run, accounting) for run in run_data.runs}),
    )


def _sweep(table: pd.DataFrame, drawn: Drawn) -> dict[str, Any]:
    found = sweep_table.table(table)
    shown = summary_markdown.swept(found)
    return {
        "text": summary_markdown.SWEPT.format(len(found)),
        "charts": [_shown(name, name) for name in SWEEP if name in drawn],
        "columns": list(shown.columns),
        "rows": shown.to_numpy().tolist(),
    }


def _code(text: str) -> Markup:
    """Convert words between backticks to code."""
    parts = text.split("`")
    return Markup().join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def _breakable(name: str) -> Markup:
    """Allow line breaks within the name of a variant."""
    return Markup("<wbr>").join(re.findall(r"[^@.,=]*[@.,=]?", name))


def _groups(columns: list[str]) -> dict[str, list[str]]:
    """The columns of a table by group; those before the first one have the group "" and are never folded."""
    groups: dict[str, list[str]] = {"": []}
    group = ""
    for name in columns:
        group = LEADS.get(name, group)
        groups.setdefault(group, []).append(name)
    return groups


def _raw(text: str) -> Markup:
    """Insert trusted text that is not HTML; the end of its element is escaped."""
    return Markup(text.replace("</script", "<\\/script"))


def _json(value: Any) -> Markup:
    """Dump a value as JSON for a script element: < is escaped."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _details(run: Shown, accounting: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return everything known about a run: both reports, and Slurm's records."""
    slurm = accounting.get(run.train.slurm_job_id or "")
    return run.train.model_dump() | {"test": run.test.model_dump() if run.test else None, "slurm": slurm}


def _overview(workloads: list[str], drawn: Drawn) -> list[dict[str, str]]:
    """The charts that compare all strategies, one panel per workload."""
    keys = {name: f"{COMPARISON}.{name}" for name in workloads}
    return [_shown(COMPARISON, key) | {"workload": name} for name, key in keys.items() if key in drawn]


def _matrix(
    table: pd.DataFrame, strategies: list[str], workloads: list[str], left_out: dict[tuple[str, str], str]
) -> tuple[list[tuple[str, list[dict[str, Any]]]], list[str]]:
    """The rows of the matrix, and its notes, which cells refer to by number from 1."""
    rows = {(row["strategy"], row["workload"]): row for row in table.to_dict("records")}
    notes: dict[str, int] = {}
    matrix = []
    for strategy in strategies:
        cells = []
        for workload in workloads:
            text, state, note = _cell(rows.get((strategy, workload)), left_out.get((strategy, workload), ""))
            number = notes.setdefault(note, len(notes) + 1) if note else None
            cells.append({"text": text, "state": state, "note": number})
        matrix.append((strategy, cells))
    return matrix, list(notes)


def _best(table: pd.DataFrame, workloads: list[str]) -> list[tuple[str, list[list[list[str]]]]]:
    """The first rows of the matrix: of each workload the strategies with the least memory for their number of ranks,
    and the fastest ones, each in lines; a cell is empty where there is nothing to choose from.
    """
    choices = [measured(table[table.workload == name]) for name in workloads]
    choices = [runs if len(runs) > 1 else {} for runs in choices]
    least = [[trade(runs, name) for name in smallest(runs).values()] for runs in choices]
    quick = [[trade(runs, name) for name in fastest(runs)] if runs else [] for runs in choices]
    return [(name, cells) for name, cells in (("least memory", least), ("fastest", quick)) if any(cells)]


def _origin(run_data: RunData) -> str:
    """Where the runs of the page come from: commits, machines, devices, versions."""
    reports = [run.train for run in run_data.runs]
    found = {
        "commit": [report.git_commit or "unknown" for report in reports],
        "on": [host for report in reports for host in report.hosts],
        "devices": [device for report in reports for device in report.devices],
        "": [f"{name} {each}" for report in reports for name, each in report.versions.items()],
    }
    parts = [f"{name} {', '.join(dict.fromkeys(values))}".strip() for name, values in found.items() if values]
    return "; ".join(parts)


def _cell(row: dict[Hashable, Any] | None, reason: str) -> tuple[str, str, str]:
    """Text, state and note of a cell."""
    if row is None:
        return "-", "empty", reason
    if pd.isna(row["test_loss"]):
        state, _, note = str(row["status"]).partition(": ")
        return state, "missing" if state == "not evaluated" else state, note
    text = f"{row['test_loss']:.6f}"
    if pd.isna(row["equality"]):
        return text, "missing", "No finished `single` to compare with."
    shown = text if row["strategy"] == "single" else summary_markdown.difference(row["rel_diff"])
    state = str(row["equality"])
    # Not by the color alone.
    return f"{shown} {state}" if state == UNEQUAL else shown, state, ""


def _workload(run_data: RunData, name: str, drawn: Drawn) -> dict[str, Any]:
    figures = summary_markdown.figures(run_data.table)
    return {
        "name": name,
        "advice": advice(run_data.table),
        "charts": [_shown(chart, f"{chart}.{name}") for chart in PER_WORKLOAD if f"{chart}.{name}" in drawn],
        "columns": list(figures.columns),
        "rows": figures.to_numpy().tolist(),
    }


def _strategy(run_data: RunData, name: str, drawn: Drawn) -> dict[str, Any]:
    kinds = [kind.replace("_", " ") for kind in MEMORY_KINDS]
    return {
        "name": name,
        "text": Markup(explained(name)),
        "charts": [_shown(chart, f"{chart}.{name}") for chart in PER_STRATEGY if f"{chart}.{name}" in drawn],
        "columns": ["workload", "ranks", "mesh", "peak memory", *kinds, "sent per step", "planned to send"],
        "rows": [_holdings(run) for run in run_data.runs],
    }


def _holdings(run: Shown) -> list[str]:
    """A run's mesh, the peak memory of its fullest rank in all and by kind, and the bytes that a rank sent."""
    train = run.train
    return [
        train.workload,
        str(train.world_size),
        " x ".join(f"{axis} {degree}" for axis, degree in train.mesh.items()) or "one rank",
        _bytes(train.held()),
        *(_bytes(train.held(kind)) for kind in MEMORY_KINDS),
        _bytes(train.bytes_per_step),
        _bytes(run.plan.predicted_bytes_per_step if run.plan else None, "not planned"),
    ]


def _bytes(size: float | None, missing: str = "not measured") -> str:
    return missing if size is None else readable_bytes(size)


def _shown(name: str, key: str) -> dict[str, str]:
    chart = load(name)
    return {"id": key, "title": chart.TITLE, "caption": chart.CAPTION}


def _faults(run_data: RunData) -> list[tuple[Any, ...]]:
    """Return all attempts at the runs that took more than one."""
    again = [run for run in run_data.runs if len(run.train.attempts) > 1]
    return [
        (run.name, each.number, each.host, each.from_step, each.reached, each.why)
        for run in again
        for each in run.train.attempts
    ]
