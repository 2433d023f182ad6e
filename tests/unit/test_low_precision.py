"""The verdict in low precision: twins of the same precision say what is rounding, each quantity by itself."""

import re

import numpy as np
import pytest

from helpers.common import tiny_run
from helpers.reports import STEP, finished, with_twins
from shardlab.records.expert_choices import encode
from shardlab.records.reports import Twin, WeightsReport
from shardlab.report import summary, summary_markdown
from shardlab.report.verdict import LOW_MULTIPLE, MULTIPLE, judge, verdict
from shardlab.settings import load

TWIN = {"loss": 1.001, "grad_norm": 1.01}
SPREAD = {"noise": 0.5, "quiet": 1e-3}


def steps(*changed):
    """Records of steps, the loss half of the one before; ``changed``: factors of each step's loss and norm."""
    return [
        STEP | {"step": number, "loss": 0.5**number * each.get("loss", 1.0), "grad_norm": each.get("grad_norm", 1.0)}
        for number, each in enumerate(changed)
    ]


def twin(loss=2.002, first=(TWIN, {}), weights=SPREAD, **more):
    kept = [{key: step[key] for key in ("loss", "grad_norm")} for step in steps(*first)]
    return Twin(test_loss=loss, validation_loss=3.0, first_steps=kept, weights=weights, **more)


@pytest.fixture
def judged(tmp_path):
    """Function that writes a run, its ``single`` and its noise floor, and returns the judged table."""

    def judged(loss=2.0, first=({}, {}), weights=None, twins=None, full=None, workload="mlp", choices=None, rounded=()):
        single, ddp = (tiny_run(workload, strategy, precision="bf16") for strategy in ("single", "ddp"))
        finished(tmp_path, single, weights="s", evaluated="s", steps=steps({}, {}), choices=choices)
        finished(tmp_path, ddp, loss=loss, weights="d", evaluated="d", steps=steps(*first), choices=choices)
        made = {"scale": 2**-8, "single_weights": "s", "full_precision": full}
        with_twins(tmp_path, single, twins or [twin()] * 2, **made)
        digests = {"weights": "d", "single_weights": "s", "initial_weights": "i"}
        differences = {"noise": 0.0, "quiet": 0.0} | (weights or {})
        counts = dict(zip(("changed", "rounded", "rounded_in_single"), rounded, strict=False))
        report = WeightsReport(**digests, differences=differences, exact=[], **counts)
        report.write(tmp_path / f"ddp/{workload}/weights.json")
        return judge(summary.collect([single, ddp], tmp_path, len(twins or [0, 0])))

    return judged


def test_each_quantity_is_judged_by_that_of_the_twins(judged):
    """Losses and norms of the first steps, and final losses, within LOW_MULTIPLE times the farthest; each weight."""
    inside, outside = 0.99 * LOW_MULTIPLE, 1.01 * LOW_MULTIPLE
    for factor, equality in ((inside, "equal"), (outside, "unequal")):
        assert judged(loss=2 + factor * 0.002).equality.tolist() == ["equal", equality]
        assert judged(first=({}, {"loss": 1 + factor * 0.001})).equality[1] == equality
        assert judged(first=({}, {"grad_norm": 1 + factor * 0.01})).equality[1] == equality, "also after an update"
    for factor, equality in ((0.99 * MULTIPLE, "equal"), (1.01 * MULTIPLE, "unequal")):
        assert judged(weights={"quiet": factor * 1e-3}).equality[1] == equality
        assert judged(weights={"noise": factor * 0.5}).equality[1] == equality
    unlike = [twin(), twin(first=({}, {}))]
    assert judged(first=({}, {"loss": 1 + inside * 0.001}), twins=unlike).equality[1] == "equal", "the farthest twin"
    both = judged(first=({"grad_norm": 1 + outside * 0.01}, {"loss": 1 + inside * 0.001}))
    assert both.first_rel_diff[1] == pytest.approx(outside * 0.01), "the larger part of its tolerance"
    assert verdict(both)[1].endswith(
        "ddp x mlp (first 4 losses or first gradient norm off by 3.0e-02, tolerance 3.0e-02)."
    )


def test_weights_without_a_float32_master_are_unequal_however_near_they_end(judged):
    assert judged(rounded=(41_770, 3, 2)).equality[1] == "equal"
    assert judged(rounded=(10, 7, 2)).equality[1] == "equal", "chance, or a type that single has, too"
    assert judged(rounded=(10, 8, 2)).equality[1] == "unequal"
    reason = "weights are rounded to bfloat16: 41,770 of 41,770 values, single 2; keep float32 master weights"
    sentence = f"Of 2 runs, 1 not equal to single: ddp x mlp ({reason})."
    assert verdict(judged(rounded=(41_770, 41_770, 2))) == (False, sentence)


def test_full_precision_is_one_of_the_twins(judged):
    """What low precision changes in ``single`` is its rounding, too; the table shows it."""
    difference = 2 + LOW_MULTIPLE * 0.006
    assert judged(loss=difference).equality[1] == "unequal"
    table = judged(loss=difference, full=twin(2.008))
    assert table.equality[1] == "equal"
    assert table.full_precision_rel_diff[1] == pytest.approx(0.004)
    text = summary_markdown.markdown(table, load.config({"workloads": ["mlp"]}), {})
    assert re.search(r"^\| single in full precision +\| 4e-03 +\|$", text, re.MULTILINE)


def test_twins_that_end_far_apart_can_hide_a_fault(judged):
    table = judged(loss=2.1, twins=[twin(2.1)] * 2)
    assert table.equality.tolist() == ["equal", "rounding"]
    said = "1 not distinguishable from rounding (recipe.precision full tells more): ddp x mlp (5.0e-02, twins 5.0e-02)."
    assert verdict(table) == (True, f"Of 2 runs, 1 equal to single; {said}")


def test_weights_of_experts_are_reported_and_not_called_unequal(judged):
    """A token that rounding sends to another expert moves a run as far as a fault; twins may have none."""
    chosen = encode(np.zeros((1, 9, 1), np.uint8))
    flips = {"workload": "moe", "choices": chosen, "twins": [twin(expert_choices=chosen)] * 2}
    assert judged(**flips).equality[1] == "equal"
    assert judged(loss=3.0, **flips).equality[1] == "unequal", "twins have other choices, too"
    assert judged(weights={"quiet": 1.0}, **flips).equality[1] == "reported"
