"""The verdict, the call, and cells that have nothing to be compared with."""

import pandas as pd
import pytest

from shardlab.report import summary
from shardlab.settings import load


def table(**losses):
    """One row per strategy on mlp; a loss of None: not finished."""
    rows = [
        {"strategy": name, "workload": "mlp", "status": "missing" if loss is None else "done", "test_loss": loss}
        for name, loss in losses.items()
    ]
    return summary.compared(pd.DataFrame(rows, columns=summary.COLUMNS).convert_dtypes())


@pytest.mark.parametrize(
    ("losses", "good", "sentence"),
    [
        ({"single": 2.0, "ddp": 2.0001, "fsdp": 2.0}, True, "All 3 runs are within 0.0001 of single."),
        ({"single": 2.0}, True, "The only run is within 0.0001 of single."),
        (
            {"single": 2.0, "ddp": 2.1, "fsdp": None},
            False,
            "Of 3 runs, 1 not within 0.0001 of single: ddp x mlp (5.0e-02); 1 not finished: fsdp x mlp (missing).",
        ),
        ({"ddp": 2.0}, False, "Of 1 runs, 1 without a finished single to compare with: ddp x mlp."),
        (
            {"single": None, "ddp": 2.0},
            False,
            "Of 2 runs, 1 without a finished single to compare with: ddp x mlp; "
            "1 not finished: single x mlp (missing).",
        ),
    ],
)
def test_the_verdict_is_one_sentence(losses, good, sentence):
    assert summary.verdict(table(**losses)) == (good, sentence)


def test_a_tolerance_can_be_asked_for():
    assert summary.verdict(table(single=2.0, ddp=2.0001), tolerance=1e-6)[0] is False


def test_the_page_begins_with_verdict_and_call_and_says_where_single_is_missing():
    values = {"strategies": ["ddp"], "workloads": ["mlp"], "seed": 7, "container": False}
    values |= {"recipe": {"max_steps": 3, "optimizer": {"learning_rate": 0.5}}}
    values |= {"site_settings": {"slurm": {"account": "mine"}}}
    config = load.config(values | {"site": "test"})
    lines = summary.markdown(table(ddp=2.0), config, {}).splitlines()
    assert lines[0] == "# Summary"
    assert lines[2] == "**Of 1 runs, 1 without a finished single to compare with: ddp x mlp.**"
    assert lines[4] == (
        "Call: site test, data embedded, size small, seed 7, nodes 1 x 2 ranks (more where a strategy needs them), "
        "recipe.max_steps = 3, recipe.optimizer.learning_rate = 0.5, site_settings.slurm.account = mine, container off."
    )
    assert "| ddp        | 2.000000 (no single) |" in lines
