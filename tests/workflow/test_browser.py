"""The report in a real browser: many runs that no training wrote. Of real runs: test_matrix.py, tests/cluster."""

import pytest

from helpers.browser import opened
from helpers.common import tiny_run
from helpers.reports import STEP, finished
from shardlab.report import charts, html, run_data, summary
from shardlab.report.verdict import judge
from shardlab.settings import load, resolve

RUNS = 60
"""More than the page lists strategies (`charts.PAGES`)."""
STEPS = 50


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The page of these runs, each with a different loss curve."""
    folder = tmp_path_factory.mktemp("many")
    run = tiny_run("mlp", "ddp")
    runs = [run.model_copy(update={"strategy": f"ddp_{number}"}) for number in range(RUNS - 1)]
    runs.insert(0, tiny_run("mlp"))
    for number, each in enumerate(runs):
        steps = [STEP | {"step": step, "loss": 3 - step / 50 + number * 1e-6} for step in range(STEPS)]
        finished(folder, each, loss=2.0 + number * 1e-9, steps=steps)
    found = run_data.collect(judge(summary.collect(runs, folder, 0)), folder)
    config = load.config({"workloads": ["mlp"]})
    config = config.model_copy(update={"strategies": [each.strategy for each in runs]})
    (folder / "report.html").write_text(html.html(found, charts.draw(found, ["mlp"]), config, {}))
    return folder / "report.html"


@pytest.mark.parametrize(("width", "scheme", "ground"), [(1280, "light", 255), (400, "dark", 15)])
def test_many_runs_can_be_read_and_sorted_on_any_screen(path, width, scheme, ground):
    with opened(path, width, scheme) as page:
        page.draw_all()
        assert page.ask("document.documentElement.scrollWidth") <= width, "the page itself does not scroll sideways"
        assert page.ask("getComputedStyle(document.body).backgroundColor").startswith(f"rgb({ground},")
        assert page.ask("[...document.querySelectorAll('.chart :is(svg, canvas)')].length") == 4 + charts.PAGES
        table = "document.querySelector('#mlp-table tbody')"
        assert page.ask(f"{table}.rows.length") == RUNS
        head = "#mlp-table th:first-child"
        for direction, first in (("ascending", "ddp_0"), ("descending", "single")):
            page.press(f"{head} button")
            assert page.ask(f"document.querySelector('{head}').getAttribute('aria-sort')") == direction
            assert page.ask(f"{table}.rows[0].cells[0].textContent") == first
        for less, more in (("900 KiB", "1 MiB"), ("-5%", "+10%"), ("8e-07", "1e-05"), ("9", "10")):
            rows = f"<tr><td>{more}</td></tr><tr><td></td></tr><tr><td>{less}</td></tr>"
            page.driver.execute_script(
                f"const table = document.createElement('table'); table.innerHTML = '<tbody>{rows}</tbody>';"
                "window.sorted = table; sortBy(table, 0, false)"
            )
            assert page.ask("[...sorted.rows].map((row) => row.textContent)") == [less, more, ""], "by their worth"
        assert page.complaints() == []


def test_no_chart_is_blank(tmp_path):
    """Each kind of chart, on all kinds of workloads."""
    workloads = [*load.config({}).workloads, "instruct@size=lora", "moe@size=lora", "moe@optimizer.name=muon"]
    given = {"strategies": ["single", "ddp", "pp_interleaved"], "workloads": workloads}  # the longest name
    config = load.config(given)
    span = {"name": "forward", "start": 0.0, "end": 0.001}
    timeline = {"phases": [[span]], "sent": [[]], "computed": [[span | {"piece": 1}]]}
    sent = [{"axis": "dp_replicate", "collective": "all-reduce", "bytes": 2**20}]
    runs, _ = resolve.matrix(config)
    for number, run in enumerate(runs):
        load_of = {"expert_load": [[3, 5]], "dropped_tokens": 0} if run.workload.startswith("moe") else {}
        steps = [STEP | {"step": step, "loss": 3 - step / 9 + number / 1e6} | load_of for step in range(9)]
        pipeline = {"timeline": timeline, "idle": [0.2]} if run.strategy == "pp_interleaved" else {}
        finished(tmp_path, run, steps=steps, traffic=sent if run.world_size > 1 else [], **pipeline)
    found = run_data.collect(judge(summary.collect(runs, tmp_path, 0)), tmp_path)
    drawn = charts.draw(found, workloads)
    assert {name.partition(".")[0] for name in drawn} == {*charts.CHARTS}
    (tmp_path / "report.html").write_text(html.html(found, drawn, config, {}))
    with opened(tmp_path / "report.html", 400) as page:
        page.draw_all()
        assert page.complaints() == []
