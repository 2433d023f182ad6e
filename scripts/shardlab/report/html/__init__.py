"""report.html: the results of a call on one page that opens offline."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from shardlab.report import summary_markdown, sweep_table
from shardlab.report.charts import ANCHORS, CHARTS, PAGES, PER_STRATEGY, PER_WORKLOAD, Drawn, strategies
from shardlab.report.run_data import RunData
from shardlab.report.technique_picture import picture
from shardlab.report.units import readable_bytes, short_number
from shardlab.report.verdict import EQUAL, REPORTED, ROUNDING, SUSPICIOUS, UNEQUAL, pages, verdict
from shardlab.settings.config import Config

HERE = Path(__file__).parent
MEASURED = ["samples_per_second", "tensor_bytes", "step_seconds_q1", "step_seconds_q3"]
"""Columns of summary.csv that advice needs."""
STATES = {
    EQUAL: "first steps, final losses and weights are within the tolerance, or rounding explains the difference.",
    ROUNDING: "rounding alone moves one device just as far, or can send a token to another expert.",
    UNEQUAL: "neither of these.",
    SUSPICIOUS: "the run learned nothing, so its loss proves nothing.",
    REPORTED: "low precision that cannot be judged: without twins, or by the weights of experts.",
}


def html(
    run_data: RunData,
    drawn: Drawn,
    config: Config,
    left_out: dict[tuple[str, str], str],
    results: Path = Path("results"),
) -> str:
    """Render the page for a folder of ``results``."""
    good, sentence = verdict(run_data.table)
    names, workloads = summary_markdown.axes(run_data.table, config, left_out)
    matrix, notes = _matrix(run_data.table, names, workloads, left_out)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"code": _code, "breakable": _breakable}
    return environment.from_string((HERE / "template.html").read_text(encoding="utf-8")).render(
        good=good,
        sentence=sentence,
        diagnoses=[(name, page, (results / page).exists()) for name, page in pages(run_data.table).items()],
        call=summary_markdown.call(config),
        origin=_origin(run_data),
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        about_columns=f"{summary_markdown.WEIGHTS} {summary_markdown.MEMORY}",
        states={state: text for state, text in STATES.items() if state in set(run_data.table.equality.dropna())},
        matrix=matrix,
        notes=notes,
        noise=summary_markdown.noise(run_data.table, workloads),
        sweep=_sweep(run_data.table) if config.sweep else None,
        workloads=[_workload(run_data.for_workload(name), name, drawn) for name in workloads],
        pages=PAGES,
        strategies={
            name: (_picture(run_data.under(name)), _charts(PER_STRATEGY, drawn, f".{name}"))
            for name in strategies(run_data)
        },
        faults=_faults(run_data),
        made=f"Shardlab with Altair {version('altair')}",
        style=_raw((HERE / "style.css").read_text(encoding="utf-8")),
        script=_raw((HERE / "page.js").read_text(encoding="utf-8")),
        vega=_raw(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")),
        specs=_json({key: specification for key, (_, specification) in drawn.items()}),
        anchors=_json(ANCHORS),
    )


def _sweep(table: pd.DataFrame) -> dict[str, Any]:
    found = sweep_table.table(table)
    shown = summary_markdown.swept(found)
    return {
        "text": summary_markdown.SWEPT.format(len(found)),
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


def _raw(text: str) -> Markup:
    """Insert trusted text that is not HTML; the end of its element is escaped."""
    return Markup(text.replace("</script", "<\\/script"))


def _json(value: Any) -> Markup:
    """Dump a value as JSON for a script element: < is escaped."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _matrix(
    table: pd.DataFrame, names: list[str], workloads: list[str], left_out: dict[tuple[str, str], str]
) -> tuple[list[tuple[str, list[dict[str, Any]]]], list[str]]:
    """The rows of the matrix, and its notes, which cells refer to by number from 1."""
    rows = {(row["strategy"], row["workload"]): row for row in table.to_dict("records")}
    notes: dict[str, int] = {}
    matrix = []
    for strategy in names:
        cells = []
        for workload in workloads:
            row, note = rows.get((strategy, workload)), left_out.get((strategy, workload), "")
            state = "empty"
            if row is not None:
                status, _, note = str(row["status"]).partition(": ")
                known = status if pd.isna(row["equality"]) else str(row["equality"])
                state = known if known not in ("not evaluated", "done") else "missing"
            number = notes.setdefault(note, len(notes) + 1) if note else None
            cells.append({"text": summary_markdown.cell(row), "state": state, "note": number})
        matrix.append((strategy, cells))
    return matrix, list(notes)


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


def _workload(run_data: RunData, name: str, drawn: Drawn) -> dict[str, Any]:
    figures = summary_markdown.figures(run_data.table)
    return {
        "name": name,
        "advice": advice(run_data.table, on_cpus=any("cpu" in run.train.devices for run in run_data.runs)),
        "charts": _charts(PER_WORKLOAD, drawn, f".{name}"),
        "columns": list(figures.columns),
        "rows": figures.to_numpy().tolist(),
    }


def _charts(names: Iterable[str], drawn: Drawn, scope: str = "") -> list[dict[str, str]]:
    """Those of these charts that were drawn for a workload or strategy."""
    keys = {f"{name}{scope}": CHARTS[name] for name in names if f"{name}{scope}" in drawn}
    return [{"id": key, "title": chart.title, "caption": chart.caption} for key, chart in keys.items()]


def _picture(run_data: RunData) -> Markup:
    """Who holds and sends what in the strategy's largest run; empty for one rank, or if its memory was not measured."""
    singles = {run.train.workload: run.train for run in run_data.singles}
    for run in run_data.runs:
        single = singles.get(run.train.workload)
        if run.train.world_size > 1 and run.train.tensor_bytes and single and single.tensor_bytes:
            return Markup(picture(run.train, single, run.timeline))
    return Markup()


def _faults(run_data: RunData) -> list[tuple[Any, ...]]:
    """Return all attempts at the runs that took more than one."""
    again = [run for run in run_data.runs if len(run.train.attempts) > 1]
    return [
        (run.name, each.number, each.host, each.from_step, each.reached, each.why)
        for run in again
        for each in run.train.attempts
    ]


def advice(rows: pd.DataFrame, *, on_cpus: bool = False) -> str:
    """Return a few sentences for the rows of one workload: the fastest strategy, and those whose middle half of the
    steps overlaps its; of those on as many ranks the one with the least memory. No fastest one ``on_cpus``, where
    ranks share cores. Empty if there is nothing to choose from.
    """
    known = rows[(rows.status == "done") & (rows.equality != UNEQUAL)].dropna(subset=MEASURED)
    if len(known) < 2:
        return ""
    by_speed = known.sort_values("samples_per_second", ascending=False, kind="stable")
    quick = by_speed[by_speed.step_seconds_q1 <= by_speed.step_seconds_q3.iloc[0]]
    *others, last = quick.strategy
    figures = _measured(quick.iloc[0])
    if on_cpus:
        parts = ["Speeds on CPUs are not ranked: ranks share cores, also with other runs."]
    elif others:
        names = f"{', '.join(others)} and {last}"
        parts = [f"Which is the fastest of {names} cannot be told: the times of their steps overlap."]
    elif last == "single":
        parts = [f"One device is the fastest here ({figures}): for this model ranks only add waiting."]
    else:
        parts = [f"Of {len(known)} strategies measured here, {last} is the fastest: {figures}."]
    for ranks in sorted({int(count) for count in known.world_size}):
        if len(of_ranks := known[known.world_size == ranks]) > 1:
            least = of_ranks.sort_values("tensor_bytes", kind="stable").iloc[0]
            parts.append(f"Least memory on {ranks} rank{'s' * (ranks > 1)}: {least.strategy}, {_measured(least)}.")
    return " ".join(parts)


def _measured(row: Any) -> str:
    speed, memory = short_number(row.samples_per_second), readable_bytes(row.tensor_bytes)
    return f"{speed} samples/s, {memory} of tensors per rank"
