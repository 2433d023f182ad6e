"""The report's page and charts, from synthetic files."""

import re

import pandas as pd
import pytest

from helpers.common import tiny_run
from helpers.reports import BYTES, STEP, finished, planned
from shardlab.report import charts, html, run_data, summary
from shardlab.report.html import advice
from shardlab.report.verdict import judge
from shardlab.settings import load
from shardlab.settings.types import WARMUP_STEPS

COUNT = WARMUP_STEPS + 2
CONFIG = load.config({"strategies": ["single", "ddp", "pp", "tp_sp"], "workloads": ["mlp"]})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Evidence of three runs: one as `single`, one further away in its last step, one missing."""
    tmp_path = tmp_path_factory.mktemp("found")
    runs = [tiny_run("mlp", name) for name in ("single", "ddp", "pp")]
    steps = [STEP | {"step": number, "loss": 0.5 if number else 0.6} for number in range(COUNT)]
    finished(tmp_path, runs[0], steps=steps)
    traffic = [{"axis": "dp_replicate", "collective": "all-reduce", "bytes": 2**20}]
    more = {"traffic": traffic, "git_commit": "</script><b>x"}
    planned(tmp_path, runs[1], [{"peak": 9, "at_peak": BYTES, "largest": BYTES}], [traffic[0] | {"bytes": 2**19}])
    slower = [step | {"seconds": 0.2} for step in steps]
    finished(tmp_path, runs[1], steps=[*slower[:-1], slower[-1] | {"loss": 0.5005}], **more)
    return run_data.collect(judge(summary.collect(runs, tmp_path, 0)), tmp_path)


@pytest.fixture(scope="module")
def drawn(found):
    return charts.draw(found, ["mlp"])


def test_each_chart_has_its_figures(drawn):
    difference, _ = drawn["difference.mlp"]
    assert difference.difference.tolist() == pytest.approx([0] * (COUNT - 1) + [1e-3])
    memory, _ = drawn["memory.mlp"]
    assert memory.query("strategy == 'ddp' and kind == 'weights'")[["bytes", "planned"]].to_numpy().tolist() == [[4, 9]]
    traffic, _ = drawn["traffic.mlp"]
    assert traffic.to_dict("records") == [
        {"strategy": "ddp", "collective": "all-reduce (dp_replicate)", "bytes": 2**20, "planned": 2**19}
    ]
    relative = drawn["speed_and_memory.mlp"][0]
    assert relative[["strategy", "memory", "time"]].to_numpy().tolist() == [["single", 1.0, 1.0], ["ddp", 1.0, 2.0]]


def test_a_strategy_is_drawn_beside_one_device_and_its_plan(tmp_path):
    runs = [tiny_run("mlp"), tiny_run("mlp", "pp")]
    span = {"name": "forward", "start": 0.0, "end": 0.001}
    sent = {"start": 0.0005, "end": 0.001, "axis": "pp", "collective": "send", "bytes": 2048}
    timeline = {"phases": [[span], [span]], "sent": [[sent], []], "computed": [[span | {"piece": 3}], []]}
    held = {"peak": 9, "at_peak": BYTES, "largest": BYTES | {"weights": 2**20}}
    finished(tmp_path, runs[0])
    planned(tmp_path, runs[1], [held, held | {"largest": BYTES | {"weights": 2**19}}])
    finished(tmp_path, runs[1], timeline=timeline, steps=[STEP], tensor_bytes=[held, held], parameters=2**18)
    drawn = charts.draw(run_data.collect(judge(summary.collect(runs, tmp_path, 0)), tmp_path), ["mlp"])
    weights = drawn["memory_per_rank.pp"][0].query("kind == 'weights'")
    assert weights["rank"].tolist() == ["single", "rank 0", "rank 1"]
    assert weights.bytes.tolist() == [4, 2**20, 2**20]
    assert weights.planned.tolist()[1:] == [2**20, 2**19]
    assert drawn["schedule.pp"][0][["place", "piece", "end"]].to_numpy().tolist() == [["0", 3, 1]]


def test_the_page_has_all_in_it_and_takes_no_text_for_html(found, drawn):
    notes = {("tp_sp", "mlp"): "no `norm` <here>", ("pp", "mlp"): "the run is in the table"}
    text = html.html(found, drawn, CONFIG, notes)
    assert "Of 3 runs, 1 not finished: pp x mlp (missing)." in text
    cells = re.findall(r'<td class="(\w+)">([^<]*)', text.partition('id="mlp"')[0])
    assert cells == [("equal", "2.0000"), ("equal", "0"), ("missing", "missing"), ("empty", "- ")]
    assert re.findall("<li id=.*?</li>", text) == ['<li id="note-1">no <code>norm</code> &lt;here&gt;</li>']
    assert "<b>x" not in text
    assert not re.search(r"""src=["'](https?:)?//|<link[^>]*href=["'](?!data:)""", text), "links are for people"


def test_advice_comes_from_the_figures():
    """Of samples/s and MiB, on 4 ranks but for `single`."""
    speeds = {"single": (1, 4), "ddp": (20, 4), "hsdp": (19, 4), "fsdp": (1, 2)}
    found = [(name, 1 if name == "single" else 4, speed, size * 2**20) for name, (speed, size) in speeds.items()]
    table = pd.DataFrame(found, columns=["strategy", "world_size", "samples_per_second", "tensor_bytes"])
    quartiles = {"step_seconds_q1": 0.9 / table.samples_per_second, "step_seconds_q3": 1.1 / table.samples_per_second}
    table = table.assign(status="done", equality="equal", **quartiles)
    assert "fastest of ddp and hsdp cannot be told" in advice(table)
    assert "Least memory on 4 ranks: fsdp, 1" in advice(table)
    assert "fastest" not in advice(table, on_cpus=True)
