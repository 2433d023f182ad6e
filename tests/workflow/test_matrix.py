"""From the README's first command to the opened report, and later calls."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from helpers.browser import opened
from helpers.common import HARD_NAME, ROOT
from helpers.documents import readme
from shardlab.report import charts

pytestmark = pytest.mark.timeout(1800)
WITHOUT_DATA = ("pipeline_bubble", "expert_load")
"""Charts that these strategies and workloads have no data for."""
STRATEGIES = ["single", "fsdp_tp", "zero3"]
"""Every engine and a 2-D mesh. The parity suite has every strategy on every workload, the cluster tests the whole
default matrix through the workflow."""
WORKLOADS = ["mlp", "xsum"]
RECIPE = {"max_steps": 8}
"""Few: over many steps the float32 rounding of two orders of summation grows, on mnist to more than the tolerance."""
VERDICT = "All 4 other runs are equal to single: first steps, validation loss, test loss and weights"
KEYS = {"strategies": STRATEGIES, "workloads": WORKLOADS, "recipe": RECIPE, "noise_floor_runs": 2}


@pytest.fixture(scope="module")
def finished(make_tree, tmp_path_factory):
    """A copy of the project in which the README's `make run` has run, on fewer runs than its own configuration."""
    tree = make_tree(tmp_path_factory.mktemp("matrix") / HARD_NAME)
    config = tree.path / "config/config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | KEYS))
    environment = Path(sys.prefix)
    if (environment / "dev").exists() or (environment / "run").exists():
        # Made by make itself: what it would install is there.
        (tree.path / ".venv").symlink_to(environment)
    *_, command, _ = readme(ROOT, "Try it")
    said = tree.run("sh", "-c", command, timeout=1700).stdout
    *_, verdict, empty, last = said.splitlines()
    assert (verdict.startswith(VERDICT), empty, last) == (True, "", "Open results/report.html"), said[-3000:]
    assert max(map(len, said.splitlines()[-9:-3])) <= 80, "the matrix fits a terminal"
    return tree


def test_every_strategy_reaches_the_test_loss_of_one_device(finished):
    """From the same weights; the summary for people says so, too."""
    summary = pd.read_csv(finished.path / "results/summary.csv")
    assert len(summary) == 6
    assert set(summary.status) == {"done"}
    assert summary.rel_diff.notna().all()
    assert summary.rel_diff.max() < 1e-5, summary.sort_values("rel_diff").tail(5)
    assert (summary.groupby("workload").untrained_test_loss.nunique() == 1).all()
    assert (summary.test_loss < summary.untrained_test_loss).all()
    # mlp has 38 parameters: a scalar more or less is a percent of all that it holds.
    off = (summary.predicted_memory_bytes - summary.tensor_bytes).abs()
    assert (off < 0.1 * summary.tensor_bytes + 1024).all()
    assert ((summary.bytes_per_step > 0) == (summary.world_size > 1)).all()
    measured = ["wall_seconds", "samples_per_second", "peak_memory_bytes", "steps", "world_size"]
    assert (summary[measured] > 0).all().all()
    assert summary.metric_value.notna().all()
    text = (finished.path / "results/summary.md").read_text()
    assert text.splitlines()[2].startswith(f"**{VERDICT}")
    assert "Call: site local, data embedded, size small, seed 1, " in text
    assert re.search(r"\| rounding alone \(twins\) \| \de[+-]\d+", text)
    report = finished.json("results/fsdp_tp/xsum/train.json")
    assert (report["mesh"], len(report["peak_memory_bytes"])) == ({"dp_shard": 2, "tp": 2}, 4)


def test_the_report_opens_in_a_browser(finished):
    """The first thing that is done with a finished call, in a folder whose name shells take apart."""
    with opened(finished.path / "results/report.html") as page:
        page.draw_all()
        assert page.ask("document.querySelector('.verdict').textContent").startswith(VERDICT)
        drawn = page.ask("[...document.querySelectorAll('.chart')].map((each) => each.dataset.spec)")
        kinds = [kind for kind in charts.PER_WORKLOAD if kind not in WITHOUT_DATA]
        of_workloads = [f"{kind}.{workload}" for workload in WORKLOADS for kind in kinds]
        of_strategies = [f"memory_per_rank.{strategy}" for strategy in STRATEGIES]
        assert drawn == [*of_workloads, *of_strategies]
        assert page.complaints() == []
    for name in drawn:
        assert "<svg" in (finished.path / f"results/charts/{name}.svg").read_text()
        assert len(pd.read_csv(finished.path / f"results/charts/{name}.csv")) > 0


def test_a_second_call_has_nothing_to_do_also_after_a_comment_and_a_change_of_code_of_no_run(finished):
    """Which runs depend on which file, and on which key: tests/unit/test_code_fingerprint.py, test_run_identity.py."""
    more = {"models/mlp.py": "# a comment\n", "measure/step_profiler.py": "MORE = 1\n"}
    before = {path: path.read_text() for path in (finished.path / "scripts/shardlab" / file for file in more)}
    for (path, text), lines in zip(before.items(), more.values(), strict=True):
        path.write_text(text + lines)
    assert "Nothing to be done" in finished.snakemake("all").stdout
    for path, text in before.items():
        path.write_text(text)
    said = finished.run("python", "scripts/shardlab", "status").stdout
    assert len(re.findall(" {2,}done$", said, re.MULTILINE)) == 6
