"""Rows that belong to their run, the verdict, the call, and cells without a reference."""

import pandas as pd
import pytest

from helpers.common import tiny_run
from helpers.reports import BYTES, STEP, finished, planned, with_twins
from shardlab.cli import report
from shardlab.errors import UserError
from shardlab.records.reports import TestReport, Twin, WeightsReport
from shardlab.report import summary
from shardlab.report.verdict import judge, verdict
from shardlab.settings import run_identity
from shardlab.settings.precisions import PRECISIONS


def table(noise_floor=None, dtype="float32", **rows):
    """One row per strategy on mlp: its test loss (None: not finished), or columns that differ from an equal run's."""
    equal = {"workload": "mlp", "status": "done", "test_loss": 2.0, "validation_loss": 1.0, "first_rel_diff": 0.0}
    equal |= {"tolerance": PRECISIONS[dtype].tolerance, "first_tolerance": PRECISIONS[dtype].first_tolerance}
    made = []
    for name, row in rows.items():
        row = row if isinstance(row, dict) else {"test_loss": row, "status": "missing" if row is None else "done"}
        made.append(equal | {"strategy": name, "noise_floor": None if name == "single" else noise_floor} | row)
    return judge(summary.compared(pd.DataFrame(made, columns=summary.COLUMNS).convert_dtypes()))


def weights(difference, tolerance=None):
    """Columns of the farthest weight."""
    return {"weights_parameter": "head.bias", "weights_rel_diff": difference, "weights_tolerance": tolerance}


CHOSEN = {"expert_choices": 9, "expert_flips": 0}


UNEQUAL = [
    ({"ddp": 2.1}, "5.0e-02"),
    ({"ddp": {"validation_loss": 1.1}}, "validation 1.0e-01"),
    ({"single": {"ema_test_loss": 4.0}, "ddp": {"ema_test_loss": 4.4}}, "average 1.0e-01"),
    # The end is equal, the beginning is not; equal weights do not excuse it.
    ({"ddp": {"first_rel_diff": 0.5} | weights(0.0, 1e-3)}, "first 4 losses or first gradient norm off by 5.0e-01"),
    # Weights have a tolerance of their own; that of those that have to be equal is 0, in any precision.
    ({"ddp": weights(1.01e-3, 1e-3)}, "head.bias 1.0e-03, tolerance 1.0e-03"),
    ({"ddp": {"test_loss": 2.5} | weights(1e-12, 0.0)}, "head.bias 1.0e-12, tolerance 0.0e+00"),
    # The twins' losses are apart, and the weights still tell; the losses come first.
    ({"noise_floor": 1e-3, "ddp": {"test_loss": 2.004} | weights(1e-2, 1e-3)}, "2.0e-03, twins 1.0e-03"),
    # One token that another expert gets moves the weights by any amount, but not those that have to be equal.
    ({"ddp": CHOSEN | weights(1e-2, 0.0)}, "head.bias 1.0e-02, tolerance 0.0e+00"),
    ({"ddp": CHOSEN | {"test_loss": 2.5} | weights(1e-2, 1e-3)}, "2.5e-01, 0 of 9 expert choices flipped"),
]


ROUNDING = "Of 2 runs, 1 equal to single; 1 not distinguishable from rounding (--config dtype=float64 settles it): ddp "
SENTENCES = [
    ({"single": 2.0, "ddp": 2.0001, "fsdp": 2.0}, True, "All 2 other runs are equal to single: first steps, valid"),
    ({"ddp": 2.1, "single": 2.0, "fsdp": None}, False, "1 not equal to single: ddp x mlp (5.0e-02); 1 not finished: "),
    ({"single": None, "ddp": 2.0}, False, "Of 2 runs, 1 without a finished single to compare with: ddp x mlp; 1 not "),
    # The twins move by 1e-3, so 2e-3 may be rounding, and float64 tells.
    ({"single": 2.0, "ddp": 2.004, "noise_floor": 1e-3}, True, f"{ROUNDING}x mlp (2.0e-03, twins 1.0e-03)."),
    ({"single": 2.0, "ddp": CHOSEN | weights(1e-2, 1e-3)}, True, f"{ROUNDING}x mlp (head.bias 1.0e-02, tolerance 1.0e"),
    # Low precision has no tolerance but twins.
    ({"single": 2.0, "ddp": 2.02, "dtype": "bf16"}, True, "1 reported, as only twins tell what is rounding in low "),
    ({"single": {"learned_nothing": "it never changes"}}, False, "1 suspicious: single x mlp (it never changes)."),
    # What was compared: without twins nothing says what is rounding in weights, and the sentence does not claim it.
    ({"single": 2.0, "ddp": weights(1.0)}, True, "first steps, validation loss and test loss."),
    ({"single": 2.0, "ddp": weights(1e-6, 1e-3), "fsdp": 2.0}, True, "loss and weights (1 of 2)."),
]
for values, reason in UNEQUAL:
    SENTENCES.append(({"single": 2.0} | values, False, f"Of 2 runs, 1 not equal to single: ddp x mlp ({reason})."))


@pytest.mark.parametrize(("values", "good", "words"), SENTENCES)
def test_the_verdict_is_one_sentence_that_names_what_differs(values, good, words):
    found, sentence = verdict(table(**values))
    assert found is good
    assert words in sentence


@pytest.mark.parametrize(("sign", "single"), [(1, 0.3), (-1, -20.0)])
@pytest.mark.parametrize("loss", ["test_loss", "validation_loss"])
def test_the_thresholds_of_final_losses(loss, sign, single):
    """A difference of the tolerance is equal, a larger one is not, better or worse; likewise for 10 times the twins."""

    def equality(difference, noise_floor=None):
        other = single * (1 + sign * difference)
        return table(noise_floor, single={loss: single}, ddp={loss: other}).equality[1]

    assert [equality(0.99e-4), equality(1.01e-4)] == ["equal", "unequal"]
    assert [equality(8.9e-4, 9e-5), equality(9.1e-4, 9e-5)] == ["equal", "unequal"]
    ends = ["equal", "rounding", "unequal"]
    assert [equality(0.99e-4, 2e-4), equality(1.99e-3, 2e-4), equality(2.01e-3, 2e-4)] == ends


@pytest.mark.parametrize(("dtype", "tolerance", "loss"), [("float32", 3e-5, 0.3), ("float64", 1e-11, -20.0)])
def test_the_threshold_of_the_first_steps(tmp_path, dtype, tolerance, loss):
    """Of losses and of the first gradient norm; twins excuse nothing in full precision."""
    runs = [tiny_run("mlp", name, dtype=dtype) for name in ("single", "ddp", "fsdp", "tp")]
    far = Twin(test_loss=2.0, validation_loss=3.0, first_steps=[{"loss": 2 * loss, "grad_norm": 4.0}], weights={})
    with_twins(tmp_path, runs[0], [far])
    for run, apart, norm in zip(runs, (0.0, 0.99, 1.01, 0.0), (0.0, -0.99, 0.0, -1.01), strict=True):
        changed = {"loss": loss * (1 + apart * tolerance), "grad_norm": 2.0 * (1 + norm * tolerance)}
        finished(tmp_path, run, steps=[STEP | changed])
    assert judge(summary.collect(runs, tmp_path, 1)).equality.tolist() == ["equal", "equal", "unequal", "unequal"]


def test_weights_are_judged_by_the_twins_of_the_same_weight(tmp_path):
    """The table shows the one whose difference is the largest part of its tolerance, in any order of rows."""
    single, ddp = tiny_run("mlp"), tiny_run("mlp", "ddp")
    for run, digest in ((single, "s"), (ddp, "d")):
        finished(tmp_path, run, weights=digest, evaluated=digest)
    spread = {"noise": 0.5, "quiet": 1e-7, "frozen": 6e-8}

    def row(differences, twins=(spread,) * 2, of_twins="s", **other):
        trained = [Twin(test_loss=2.0, validation_loss=3.0, weights=each) for each in twins]
        with_twins(tmp_path, single, trained, single_weights=of_twins)
        digests = {"weights": "d", "single_weights": "s", "initial_weights": "i"} | other
        WeightsReport(**digests, differences=differences, exact=["frozen"]).write(tmp_path / "ddp/mlp/weights.json")
        tables = [judge(summary.collect(runs, tmp_path, 2)) for runs in ([single, ddp], [ddp, single])]
        columns = ["weights_parameter", "weights_rel_diff", "weights_tolerance", "equality"]
        one, reverse = (found.set_index("strategy").loc["ddp", columns] for found in tables)
        assert one.equals(reverse)
        return [None if pd.isna(value) else value for value in one]

    near = {"noise": 4.0, "quiet": 9.9e-4, "frozen": 0.0}
    assert row(near) == ["quiet", 9.9e-4, pytest.approx(1e-3), "equal"]
    assert row(dict.fromkeys(near, 0.0)) == ["quiet", 0.0, pytest.approx(1e-3), "equal"]
    assert row(near | {"quiet": 1.01e-3}) == ["quiet", 1.01e-3, pytest.approx(1e-3), "unequal"]
    assert row(near | {"frozen": 1e-9}) == ["frozen", 1e-9, 0.0, "unequal"]
    # The farthest twin of each weight, whichever it is.
    beside = [spread | {"noise": 0.09}, spread | {"noise": 0.01}]
    assert row(near | {"noise": 0.8999}, beside) == ["noise", 0.8999, pytest.approx(0.9), "equal"]
    # Twins of other weights: only what has to be equal is judged.
    assert row(near, of_twins="other") == ["noise", 4.0, None, "equal"]
    assert row(near | {"frozen": 1e-9}, of_twins="other") == ["frozen", 1e-9, 0.0, "unequal"]
    for other in ("weights", "single_weights", "initial_weights"):
        assert row(near, **{other: "other"}) == [None, None, None, "equal"]


@pytest.mark.parametrize("loss", [3.0, None])
def test_the_check_fails_unless_all_are_equal(tmp_path, monkeypatch, loss):
    monkeypatch.setattr(summary, "judged", lambda *_: (table(single=2.0, ddp=loss), {}))
    monkeypatch.setattr("sys.argv", ["shardlab summarize", f"--results={tmp_path}", "--check"])
    with pytest.raises(UserError, match="ddp x mlp"):
        report.summarize()


def test_a_row_belongs_to_its_run(tmp_path):
    single, ddp = tiny_run("mlp"), tiny_run("mlp", "ddp")
    finished(tmp_path, single)

    def status(run=ddp, **made):
        finished(tmp_path, run, **made)
        rows = summary.collect([single, ddp], tmp_path, 0)
        assert pd.isna(rows.rel_diff[1]) == (rows.status[1] != "done")
        return rows.status[1]

    assert status() == "done"
    assert status(tiny_run("mlp", "ddp", optimizer={"learning_rate": 0.5})) == "stale: recipe.optimizer.learning_rate"
    assert status(ddp.model_copy(update={"seed": 7})) == "stale: seed"
    changed = {"scripts/shardlab/train": "another"}
    assert status(ddp.model_copy(update={"sources": ddp.sources | changed})) == "stale: sources.scripts/shardlab/train"
    assert status(data="other") == "stale: data"
    assert status(initial="other") == "stale: initial weights"
    assert status(evaluated="other") == "stale: evaluated other weights"
    assert status() == "done"
    path = tmp_path / "ddp/mlp/test.json"
    report = TestReport.read(path, "")
    report.model_copy(update={"identity": run_identity.identity_of(single, "d")}).write(path)
    assert summary.collect([single, ddp], tmp_path, 0).status[1] == "stale: evaluated with other settings or data"
    path.unlink()
    assert summary.collect([single, ddp], tmp_path, 0).status[1] == "not evaluated"


def test_twins_of_another_run_are_no_measure(tmp_path):
    single, ddp = tiny_run("mlp"), tiny_run("mlp", "ddp")
    finished(tmp_path, single, loss=0.2)
    finished(tmp_path, ddp)

    def noise_floor(run=single, count=2, losses=((0.2002, 3.0), (0.1999, 3.0)), average=None, **changed):
        kept = {"ema_loss": average, "weights": {}}
        twins = [Twin(test_loss=test, validation_loss=validation, **kept) for test, validation in losses]
        with_twins(tmp_path, run, twins, **changed)
        return summary.collect([single, ddp], tmp_path, count).noise_floor[1]

    assert noise_floor() == pytest.approx(1e-3)
    assert noise_floor(losses=((0.2002, 3.0), (0.199, 3.0))) == pytest.approx(5e-3), "the farthest twin"
    assert noise_floor(losses=((0.2002, 2.97), (0.2, 3.0))) == pytest.approx(1e-2), "also in validation"
    for changed in ({"scale": 6e-6}, {"initial_weights": "other"}, {"workload": "mnist"}, {"count": 6}):
        assert pd.isna(noise_floor(**changed)), changed
    assert pd.isna(noise_floor(identity=run_identity.identity_of(single, "other")))
    path = tmp_path / "single/mlp/test.json"
    TestReport.read(path, "").model_copy(update={"ema_loss": 0.4}).write(path)
    assert noise_floor(average=0.42) == pytest.approx(5e-2), "also of averages"
    path.unlink()
    assert pd.isna(noise_floor()), "single is not evaluated"
    finished(tmp_path, single, loss=0.2)
    assert pd.isna(noise_floor(single.model_copy(update={"seed": 7})))


@pytest.mark.parametrize(
    ("changed", "first", "reason"),
    [
        ([{"grad_norm": 0.0}, {"grad_norm": 0.0, "loss": 0.5}], 1.0, "its gradient norm is always 0"),
        ([{}, {}], 1.0, "its loss never changes"),
        ([{"loss": 1.25}, {"grad_norm": 9.0, "loss": 0.5}], 0.25, None),
    ],
)
def test_first_steps_and_runs_that_learn_nothing(tmp_path, changed, first, reason):
    single, ddp = tiny_run("mlp"), tiny_run("mlp", "ddp")
    skipped = {"step": 2, "loss": None, "grad_norm": None}
    finished(tmp_path, single, steps=[STEP, STEP | {"step": 1, "loss": 0.5}, STEP | skipped])
    finished(tmp_path, ddp, steps=[STEP | each | {"step": number} for number, each in enumerate(changed)])
    row = summary.collect([single, ddp], tmp_path, 0).iloc[1]
    assert row.first_rel_diff == first
    assert (None if pd.isna(row.learned_nothing) else row.learned_nothing) == reason


def test_memory_in_the_table_is_that_of_the_fullest_rank(tmp_path):
    """In all, by kind, which need not be the same rank, and of the process; and the plan's error."""
    run = tiny_run("mlp", "ddp")
    ranks = [{"peak": 9, "at_peak": BYTES, "largest": BYTES} for _ in range(3)]
    ranks[1] = {"peak": 80, "at_peak": BYTES, "largest": BYTES | {"optimizer": 50}}
    ranks[2] = {"peak": 70, "at_peak": BYTES, "largest": BYTES | {"gradients": 40}}
    finished(tmp_path, run, tensor_bytes=ranks, peak_memory_bytes=[100, 300, 100])
    sent = [{"axis": "dp_replicate", "collective": "all-reduce", "bytes": size} for size in (4, 5)]
    planned(tmp_path, run, [ranks[1] | {"peak": 60}], sent)
    row = summary.collect([run], tmp_path, 0).iloc[0]
    assert (row.tensor_bytes, row.optimizer_bytes, row.gradients_bytes, row.peak_memory_bytes) == (80, 50, 40, 300)
    assert (row.predicted_memory_bytes, row.memory_error, row.predicted_bytes_per_step) == (60, -0.25, 9)
