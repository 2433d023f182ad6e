"""The figures of train.json, by hand."""

import pytest

from helpers.common import tiny_run
from helpers.reports import STEP, measured
from shardlab.records.reports import Attempt
from shardlab.records.train_report import train_report
from shardlab.settings.pipeline_schedules import SCHEDULES
from shardlab.settings.types import WARMUP_STEPS

SECONDS = [9.0, *[8.0] * (WARMUP_STEPS - 1), *range(1, 21)]
"""A warm-up of 9 and 8 s a step, then 20 steps of 1 to 20 s."""


def report(run, attempts=(), started=0, seconds=SECONDS, **more):
    steps = [STEP | {"step": number, "seconds": each} for number, each in enumerate(seconds)]
    validations = [
        {"kind": "validation", "step": step, "loss": loss} for step, loss in ((0, 2.0), (len(steps) - 1, 3.0))
    ]
    traffic = [{"axis": "pp", "collective": name, "bytes": size} for name, size in (("send", 2.0), ("sum", 3.0))]
    more = {"wall_seconds": 100.0, "flops_per_step": 2 * 10**12, "device_peak_flops": 10**12, "traffic": traffic} | more
    records = [
        {"kind": "attempt", "step": 0, "time": "before"},
        *steps[:1],
        validations[0],
        {"kind": "attempt", "step": started, "time": "t"},
        *steps[1:],
        validations[1],
    ]
    return train_report(run, records, measured(run, **more), attempts)


def attempt(number, **values):
    return Attempt(number=number, call="c", began="b", host="here", slurm_job_id=None, **values)


def test_times_are_those_of_the_steps_behind_the_warm_up():
    found = report(tiny_run("mlp"))
    assert found.step_seconds_median == 10.5
    assert found.step_seconds_quartiles == (6.0, 15.0)
    assert found.step_seconds_p95 == 19.0, "of 20 steps one takes longer"
    assert found.samples_per_second == 20 * STEP["samples"] / sum(range(1, 21))
    assert found.validation_loss == 3.0, "the last one, not the lowest"
    assert found.bytes_per_step == 5.0


def test_the_mfu_is_of_all_devices():
    """2e12 operations in a step of 10.5 s, on devices of 1e12 FLOP/s each."""
    assert report(tiny_run("mlp")).mfu == pytest.approx(2 / 10.5)
    assert report(tiny_run("mlp", "ddp", 2)).mfu == pytest.approx(1 / 10.5)
    assert report(tiny_run("mlp", "mp", 2)).mfu == pytest.approx(1 / 10.5), "one rank that drives two"
    assert report(tiny_run("mlp"), device_peak_flops=None).mfu is None


@pytest.mark.parametrize(
    ("name", "ranks", "pieces", "bubble"),
    [("GPipe", 4, 4, 3 / 7), ("1F1B", 2, 8, 1 / 9), ("Interleaved1F1B", 4, 4, 3 / 11), ("ZBVZeroBubble", 2, 4, None)],
)
def test_the_bubble_of_a_pipeline(name, ranks, pieces, bubble):
    """(p - 1) / (m + p - 1), with twice the m where a rank has two stages."""
    assert SCHEDULES[name].bubble(ranks, pieces) == bubble


def test_a_report_counts_the_steps_of_all_attempts():
    """The second attempt ended before its first checkpoint, after 2 steps, the third 4 steps after its checkpoint of
    step 3, the next one before any step, the fifth at its checkpoint. The time of a script's step may be unknown."""
    attempts = [attempt(0, from_step=0), attempt(1, from_step=0, reached=2), attempt(2, from_step=0, reached=7)]
    attempts += [attempt(3, reached=99), attempt(4, from_step=3, reached=8), attempt(5, from_step=8)]
    found = report(tiny_run("mlp"), attempts, started=8, seconds=[None, *SECONDS[1:]])
    assert found.lost_steps == 2 + 4
    assert found.wall_seconds == 100.0 + sum(SECONDS[1:8])
    last = found.attempts[-1]
    assert (last.why, last.from_step, last.reached, last.first_step_at) == ("finished", 8, len(SECONDS), "t")
