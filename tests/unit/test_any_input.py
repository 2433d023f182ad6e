"""Any content of a configuration or results file is accepted or ends with one sentence, never a traceback."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.common import tiny_run
from shardlab.errors import UserError
from shardlab.records.reports import TestReport, TrainReport
from shardlab.report import summary
from shardlab.settings import load, resolve
from shardlab.settings.config import Config
from shardlab.settings.types import Run, read_run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
QUICK = settings(
    deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
SMALL = {"workloads": ["mlp"], "strategies": ["single", "ddp"]}


@QUICK
@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)) | st.text(max_size=9), JSON, max_size=4))
def test_a_configuration(values):
    with suppress(UserError):
        runs, _ = resolve.matrix(load.config(SMALL | values))
        assert all(isinstance(run, Run) for run in runs)


@QUICK
@given(st.data())
def test_a_damaged_file(data):
    whole = tiny_run("mlp", "ddp").model_dump(mode="json")
    key = data.draw(st.sampled_from(sorted(whole)))
    text = json.dumps(whole | {key: data.draw(JSON)})
    text = text[: data.draw(st.sampled_from([len(text), len(text) // 2, 0]))]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        path = results / "ddp/mlp/train.json"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        for kind in (TrainReport, TestReport):
            with pytest.raises(UserError, match=r"train.json.*make it again"):
                kind.read(path, "make it again")
        with suppress(UserError):
            assert isinstance(read_run(path), Run)
        (results / "ddp/mlp.done").touch()
        row = summary.collect([tiny_run("mlp", "ddp")], results, 0)
        assert row.status[0].startswith("damaged: ")
        assert row.test_loss.isna().all()
