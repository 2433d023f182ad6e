"""report.html: the results of a call on one page that opens offline. Imports no torch."""

import json
from collections.abc import Hashable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from shardlab.report import page, sweep
from shardlab.report.advice import advice
from shardlab.report.charts import ANCHORS, BENCHMARKS, COMPARISON, OVERALL, PER_STRATEGY, PER_WORKLOAD, SWEEP, load
from shardlab.report.evidence import Evidence, Shown
from shardlab.report.families import FAMILIES
from shardlab.report.pages import explained
from shardlab.report.records import TrainReport
from shardlab.report.summary import SHOWN
from shardlab.report.units import readable_bytes
from shardlab.report.verdict import EQUAL, REPORTED, ROUNDING, SUSPICIOUS, UNEQUAL, verdict
from shardlab.report.workload_order import order_workloads
from shardlab.settings.config import Config

HERE = Path(__file__).parent
PAGES = 40
"""Strategies with their own charts; more would make the page slow."""
STATES = {
    EQUAL: "first steps and final losses are within the tolerance, or the difference is explained by rounding.",
    ROUNDING: "rounding alone moves one device just as far.",
    UNEQUAL: "neither of these.",
    SUSPICIOUS: "the run learned nothing, so its loss proves nothing.",
    REPORTED: "low precision, which has no tolerance.",
}
Drawn = dict[str, tuple[pd.DataFrame, dict[str, Any]]]
"""Name of a chart, ``loss.llama2``: its table and its Vega-Lite specification."""


def charts(evidence: Evidence, workloads: list[str]) -> Drawn:
    """Draw all charts for which the runs have data."""
    scopes: list[tuple[str, Evidence, tuple[str, ...]]] = [
        (name, evidence.of(name), PER_WORKLOAD) for name in workloads
    ]
    scopes += [(name, evidence.under(name), PER_STRATEGY) for name in strategies(evidence)]
    parts = [(name, f"{name}.{scope}", part) for scope, part, names in scopes for name in names]
    drawn: Drawn = {}
    for name, key, part in parts + [(name, name, evidence) for name in (*SWEEP, *OVERALL, *BENCHMARKS)]:
        chart = load(name)
        table = chart.table(part)
        if len(table):
            drawn[key] = table, chart.draw(table).properties(description=chart.CAPTION).to_dict()
    return drawn


def strategies(evidence: Evidence) -> list[str]:
    """Return the first strategies that have runs, in the order of the configuration: those that get a page."""
    there = {run.train.strategy for run in evidence.runs}
    return [name for name in dict.fromkeys(evidence.table.strategy) if name in there][:PAGES]


def html(
    evidence: Evidence,
    drawn: Drawn,
    config: Config,
    left_out: dict[tuple[str, str], str],
    accounting: dict[str, dict[str, str]],
) -> str:
    """Render the page. ``accounting``: Slurm's record of each job."""
    good, sentence = verdict(evidence.table)
    strategies_shown, workloads = page.axes(evidence.table, config, left_out)
    workloads = order_workloads(workloads, config, evidence)
    matrix, notes = _matrix(evidence.table, strategies_shown, workloads, left_out)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["code"] = _code
    return environment.from_string((HERE / "template.html").read_text(encoding="utf-8")).render(
        good=good,
        sentence=sentence,
        call=page.call(config),
        memory=page.MEMORY,
        states=STATES,
        matrix=matrix,
        notes=notes,
        overview=_overview(workloads, drawn),
        families=[{"name": name} | asdict(FAMILIES[name]) for name in FAMILIES if name in evidence.families.values()],
        sweep=_sweep(evidence.table, drawn) if config.sweep else None,
        workloads=[_workload(evidence.of(name), name, drawn) for name in workloads],
        pages=PAGES,
        strategies=[_strategy(evidence.under(name), name, drawn) for name in strategies(evidence)],
        overall=[_shown(name, name) for name in OVERALL if name in drawn],
        benchmarks=[_shown(name, name) for name in BENCHMARKS if name in drawn],
        faults=_faults(evidence),
        results="results",
        made=f"Shardlab with Altair {version('altair')}",
        style=_raw((HERE / "style.css").read_text(encoding="utf-8")),
        script=_raw((HERE / "page.js").read_text(encoding="utf-8")),
        vega=_raw(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
        specs=_json({key: specification for key, (_, specification) in drawn.items()}),
        anchors=_json(ANCHORS),
        details=_json({run.name: _details(run, accounting) for run in evidence.runs}),
    )


def _sweep(table: pd.DataFrame, drawn: Drawn) -> dict[str, Any]:
    found = sweep.table(table)
    shown = page.swept(found)
    return {
        "text": page.SWEPT.format(len(found)),
        "charts": [_shown(name, name) for name in SWEEP if name in drawn],
        "columns": list(shown.columns),
        "rows": shown.to_numpy().tolist(),
    }


def _code(text: str) -> Markup:
    """Convert words between backticks to code."""
    parts = text.split("`")
    return Markup().join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def _raw(text: str) -> Markup:
    """Insert trusted text that is not HTML; the end of its element is escaped."""
    return Markup(text.replace("</script", "<\\/script"))


def _json(value: Any) -> Markup:
    """Dump a value as JSON for a script element: < is escaped."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


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
    difference = f"{row['rel_diff']:.0e}" if row["rel_diff"] else "0"
    return text if row["strategy"] == "single" else f"{text} ({difference})", str(row["equality"]), ""


def _workload(evidence: Evidence, name: str, drawn: Drawn) -> dict[str, Any]:
    spread = evidence.table.spread.max()
    figures = page.figures(evidence.table)
    return {
        "name": name,
        "spread": "" if pd.isna(spread) else f"{spread:.0e}",
        "advice": advice(evidence.table),
        "charts": [_shown(chart, f"{chart}.{name}") for chart in PER_WORKLOAD if f"{chart}.{name}" in drawn],
        "columns": list(figures.columns),
        "rows": figures.to_numpy().tolist(),
    }


def _strategy(evidence: Evidence, name: str, drawn: Drawn) -> dict[str, Any]:
    kinds = [kind.replace("_", " ") for kind in SHOWN]
    return {
        "name": name,
        "text": Markup(explained(name)),
        "charts": [_shown(chart, f"{chart}.{name}") for chart in PER_STRATEGY if f"{chart}.{name}" in drawn],
        "columns": ["workload", "ranks", "mesh", "peak memory", *kinds, "sent per step", "theory"],
        "rows": [_holdings(run.train) for run in evidence.runs],
    }


def _holdings(train: TrainReport) -> list[str]:
    """A run's mesh, the peak memory of its fullest rank in all and by kind, and the bytes that a rank sent."""
    return [
        train.workload,
        str(train.world_size),
        " x ".join(f"{axis} {degree}" for axis, degree in train.mesh.items()) or "one rank",
        _bytes(train.held()),
        *(_bytes(train.held(kind)) for kind in SHOWN),
        _bytes(train.bytes_per_step),
        _bytes(train.bytes_per_step_theory, "no formula"),
    ]


def _bytes(size: float | None, missing: str = "not measured") -> str:
    return missing if size is None else readable_bytes(size)


def _shown(name: str, key: str) -> dict[str, str]:
    chart = load(name)
    return {"id": key, "title": chart.TITLE, "caption": chart.CAPTION}


def _faults(evidence: Evidence) -> list[tuple[Any, ...]]:
    """Return all attempts at the runs that took more than one."""
    again = [run for run in evidence.runs if len(run.train.attempts) > 1]
    return [
        (run.name, each.number, each.host, each.from_step, each.reached, each.why)
        for run in again
        for each in run.train.attempts
    ]
