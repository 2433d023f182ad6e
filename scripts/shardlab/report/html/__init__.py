"""report.html: a self-contained page with everything about a call, which opens offline. Imports no torch."""

import json
from collections.abc import Hashable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from shardlab.report import page, sweep
from shardlab.report.advice import advice
from shardlab.report.charts import BENCHMARKS, OVERALL, PER_STRATEGY, PER_WORKLOAD, SWEEP, load
from shardlab.report.evidence import Evidence, Shown
from shardlab.report.pages import explained
from shardlab.report.records import TrainReport
from shardlab.report.summary import SHOWN
from shardlab.report.verdict import EQUAL, REPORTED, ROUNDING, SUSPICIOUS, UNEQUAL, verdict
from shardlab.settings.config import Config

HERE = Path(__file__).parent
PAGES = 40
"""Maximum strategies with separate charts; more would make the page slow, and there are not as many names."""
STATES = {
    EQUAL: "first steps and final losses within the tolerance, or as close as rounding explains.",
    ROUNDING: "rounding alone moves one device as far.",
    UNEQUAL: "neither.",
    SUSPICIOUS: "the run learned nothing, so equality says nothing.",
    REPORTED: "low precision: reported, without a tolerance.",
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
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["code"] = _code
    return environment.from_string((HERE / "template.html").read_text(encoding="utf-8")).render(
        good=good,
        sentence=sentence,
        call=page.call(config),
        memory=page.MEMORY,
        states=STATES,
        matrix=_matrix(evidence.table, strategies_shown, workloads, left_out),
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


def _matrix(
    table: pd.DataFrame, strategies: list[str], workloads: list[str], left_out: dict[tuple[str, str], str]
) -> list[tuple[str, list[dict[str, str]]]]:
    rows = {(row["strategy"], row["workload"]): row for row in table.to_dict("records")}
    return [
        (strategy, [_cell(rows.get((strategy, name)), left_out.get((strategy, name), "")) for name in workloads])
        for strategy in strategies
    ]


def _cell(row: dict[Hashable, Any] | None, reason: str) -> dict[str, str]:
    if row is None:
        return {"text": "-", "state": "empty", "more": reason}
    if pd.isna(row["test_loss"]):
        state, _, more = str(row["status"]).partition(": ")
        return {"text": state, "state": "missing" if state == "not evaluated" else state, "more": more}
    text = f"{row['test_loss']:.6f}"
    if pd.isna(row["equality"]):
        return {"text": text, "state": "missing", "more": "no single to compare with"}
    difference = f"{row['rel_diff']:.0e}" if row["rel_diff"] else "0"
    text = text if row["strategy"] == "single" else f"{text} ({difference})"
    return {"text": text, "state": str(row["equality"]), "more": ""}


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
    columns = ["workload", "ranks", "mesh", "maxima of the fullest rank", "peak", "sent per step", "theory"]
    return {
        "name": name,
        "text": Markup(explained(name)),
        "charts": [_shown(chart, f"{chart}.{name}") for chart in PER_STRATEGY if f"{chart}.{name}" in drawn],
        "columns": columns,
        "rows": [_holdings(run.train) for run in evidence.runs],
    }


def _holdings(train: TrainReport) -> list[str]:
    """Return a run's mesh, the maximum of each kind on its fullest rank, and the bytes sent per rank."""
    held = ", ".join(f"{kind} {_mebibytes(train.held(kind))}" for kind in SHOWN)
    return [
        train.workload,
        str(train.world_size),
        " x ".join(f"{axis} {degree}" for axis, degree in train.mesh.items()) or "one rank",
        held,
        _mebibytes(train.held()),
        _mebibytes(train.bytes_per_step),
        _mebibytes(train.bytes_per_step_theory, "no formula"),
    ]


def _mebibytes(size: float | None, missing: str = "not measured") -> str:
    return missing if size is None else f"{size / 2**20:.3g} MiB"


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
