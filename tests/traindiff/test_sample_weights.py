"""Weights of samples explain the gradients of small trainings with the faults of real trainers; no cause is wrong."""

import pytest
import small_training
import torch
from safetensors.torch import save_file
from small_training import HELD_BACK, MISSED, compared, of_fault, structure, training
from tiny_dumps import dump

from traindiff.capture_files import InputError
from traindiff.evidence import Evidence
from traindiff.optimizer_settings import look_at_settings
from traindiff.page import markdown


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Folder of the trainings, which are too small for two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path_factory.mktemp("trainings")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("known", [True, False], ids=["ranks known", "ranks unknown"])
@pytest.mark.parametrize("name", MISSED)
def test_weights_of_samples_name_faults_of_real_trainers(folder, name, known):
    _, causes, step = MISSED[name]
    found = of_fault(folder, name, *(structure(name) if known else []))
    page = markdown(found, name)
    assert (found.first.step, found.first.kind) == (step, "gradient"), page
    if (causes == small_training.OTHER and "labels" in name) or "padding" in name:
        assert not found.causes, page
        assert "No weights of the step's samples explain the gradient: they leave " in page
    else:
        assert found.causes[0].cause in causes, page


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", HELD_BACK)
def test_no_cause_is_wrong_for_faults_that_none_was_written_for(folder, name, dtype):
    _, causes = HELD_BACK[name]
    if name == "untied":
        with pytest.raises(InputError, match=r"names of tensors differ, 1 only in .* \(head.weight\)"):
            of_fault(folder, name, dtype=dtype)
        return
    found = of_fault(folder, name, *structure(name), dtype=dtype)
    assert found.first
    assert all(cause.cause in causes for cause in found.causes[:1]), markdown(found, name)


@pytest.mark.parametrize("name", ["mean of the ranks' means", "ranks' micro-batches not divided", "a sample doubled"])
def test_weights_are_found_in_float32(folder, name):
    _, causes, _ = MISSED[name]
    found = of_fault(folder, name, *structure(name), dtype=torch.float32)
    assert {cause.cause for cause in found.causes[:1]} & {*causes}, markdown(found, name)


def test_the_weights_are_shown_in_a_table(folder):
    found = of_fault(folder, "the last sample dropped")
    page = markdown(found, "")
    assert "| sample | targets | weight |\n| --- | --- | --- |\n| 0 | 8 | 1 |\n" in page
    assert "| 7 | 3 | 0 |\n" in page
    assert "Sample 7 (the step's last) counts 0 times: it is dropped." in page


def weighted(weights, rows=8, size=400, **metadata):
    """Files of a reference with gradients of samples, and of a training in which these count otherwise."""
    own = torch.randn(rows, size, generator=torch.Generator().manual_seed(3)).double()
    off = torch.tensor(weights).double() @ own
    return own, {"gradients-0": {"x": off}}, {"gradients-0": {"x": own.sum(0)}}, metadata


def page_of(tmp_path, own, other, reference, metadata, *options, shown=None, kept=None):
    other, reference = dump(tmp_path / "other", other), dump(tmp_path / "reference", reference)
    tensors = {"x": own} if kept is None else {"x": own[:, kept], "x//index": kept}
    save_file(tensors, reference / "samples-0.safetensors", metadata)
    if shown:
        (other / "step-0.json").write_text(shown)
    return markdown(compared(other, reference, *options), "")


@pytest.mark.parametrize("kept", [None, torch.arange(0, 400, 5)])
def test_ids_say_which_samples_each_rank_reads(tmp_path, kept):
    """Rank 0 reads every other sample, and alone counts."""
    files = weighted([2, 0] * 4, ids="[10, 11, 12, 13, 14, 15, 16, 17]")
    shown = '{"ids": [[10, 12, 14, 16], [[11, 13], [15, 17]]]}'
    page = page_of(tmp_path, *files, shown=shown, kept=kept)
    assert "usual cause: not reduced.**" in page
    assert "Of 2 ranks, only 0 counts, with a weight of 2." in page
    assert "| 11 | 1 | 0 |" in page


@pytest.mark.parametrize(
    ("weights", "shown", "cause", "says"),
    [
        (
            [1] * 7 + [0],
            "[[10, 11, 12, 13], [14, 15, 16]]",
            "samples count differently",
            "17 (the step's last) counts 0 times",
        ),
        ([2] * 4 + [0] * 4, "[[10, 11, 12, 13], [10, 11, 12, 13]]", "same samples on all ranks", "| 17 | none | 0 |"),
        ([8 / 7 * 3 / 4] * 4 + [8 / 7] * 3 + [0], "[[10, 11, 12, 13], [14, 15, 16]]", None, "read in this step: 17."),
    ],
)
def test_a_sample_that_no_rank_reads_belongs_to_none(tmp_path, weights, shown, cause, says):
    files = weighted(weights, ids="[10, 11, 12, 13, 14, 15, 16, 17]")
    page = page_of(tmp_path, *files, "--ranks", "dp=2", shown=f'{{"ids": {shown}, "world_size": 2}}')
    assert (f"usual cause: {cause}.**" if cause else "no known pattern.**") in page
    assert says in page


def test_ids_of_another_kind_leave_the_blocks_to_ranks(tmp_path):
    page = page_of(
        tmp_path,
        *weighted([2] * 4 + [0] * 4, ids=str([*"abcdefgh"]).replace("'", '"')),
        "--ranks",
        "dp=2",
        shown='{"ids": [[1, 2, 3, 4]]}',
    )
    assert "Of 2 ranks, only 0 counts, with a weight of 2." in page


@pytest.mark.parametrize(
    "ids", ["[[10, 11, 12, 13], [10, 11, 12, 13]]", "[[[10, 11], [12, 13]], [[12, 13], [10, 11]]]"]
)
def test_ids_say_that_all_ranks_read_the_same_samples(tmp_path, ids):
    files = weighted([2] * 4 + [0] * 4, ids="[10, 11, 12, 13, 14, 15, 16, 17]")
    page = page_of(tmp_path, *files, "--ranks", "dp=2", shown=f'{{"ids": {ids}}}')
    assert "usual cause: same samples on all ranks.**" in page
    assert "By their ids, all 2 ranks read the same samples, and only these count." in page
    assert "2 ranks, only" not in page


def test_samples_that_cannot_be_told_apart_are_named(tmp_path):
    own, _, reference, metadata = weighted([1] * 8)
    own[5] = own[4]
    own[7] = own[6]
    files = {"gradients-0": {"x": 2 * own[:4].sum(0)}}, {**reference, "gradients-0": {"x": own.sum(0)}}
    page = page_of(tmp_path, own, *files, metadata)
    assert "The gradients of some samples cannot be told apart" in page


@pytest.mark.parametrize("size", [20, 4])
def test_few_values_explain_nothing(tmp_path, size):
    page = page_of(tmp_path, *weighted([2, 0] * 4, size=size))
    assert "no known pattern.**" in page
    assert "weight" not in page


def test_samples_that_do_not_add_up_explain_nothing(tmp_path):
    own, other, reference, metadata = weighted([2, 0] * 4)
    page = page_of(tmp_path, own + 1, other, reference, metadata)
    assert "The gradients of the samples add up to the reference's only up to " in page
    assert "no known pattern.**" in page


@pytest.mark.parametrize("metadata", [{"ids": "[1, 2]"}, {"targets": "3"}, {"ids": "["}])
def test_metadata_that_do_not_fit_are_an_error(tmp_path, metadata):
    with pytest.raises(InputError, match=r"its metadata `(ids|targets)` is not a list of 8 values in JSON"):
        page_of(tmp_path, *weighted([2, 0] * 4, **metadata))


def test_missing_clipping_shows_in_the_updates(folder):
    """Only the reference writes clipped gradients."""
    other = training({"clip": lambda self: None}).run(folder / "unclipped", with_clipped=False)
    training({}).run(folder / "clipped", with_samples=True)
    found = compared(other, folder / "clipped")
    assert found.causes[0].cause == "no clipping", markdown(found, "")
    other = training({}).run(folder / "clipped too", with_clipped=False)
    assert compared(other, folder / "clipped").first is None


def test_rounding_of_small_gradients_is_not_missing_clipping(folder):
    """Adam's first update has their signs, and is the same for clipped ones."""

    def gradient(self, step):
        self.backward(self.rows(step), self.count(self.rows(step)))
        torch.manual_seed(step)
        for each in self.model.parameters():
            each.grad += 0.01 * each.grad.abs().max() * torch.randn_like(each.grad)

    other = training({"gradient": gradient}).run(folder / "noise", with_clipped=False)
    reference = training({}).run(folder / "without noise")
    found = Evidence()
    look_at_settings(compared(other, reference, "--dtype", "bfloat16").pair, 0, ["up.weight"], found)
    assert "pattern" not in found.facts


def test_adam_without_bias_correction_is_named(folder):
    found = of_fault(folder, "Adam without bias correction")
    assert found.causes[0].cause == "optimizer settings", markdown(found, "")


def test_rows_without_a_gradient_have_no_weight(tmp_path):
    """A part of a sample without targets."""
    own, *_ = weighted([1] * 8)
    own[3] = 0
    files = (
        {"gradients-0": {"x": own[:4].sum(0) * 15 / 18 + own[4:].sum(0) * 15 / 12}},
        {"gradients-0": {"x": own.sum(0)}},
    )
    page = page_of(tmp_path, own, *files, {"targets": "[3, 3, 3, 0, 2, 1, 2, 1]"}, "--ranks", "dp=2")
    assert "usual cause: ranks count differently.**" in page
    assert "| #2 | 3 | 0 | 0.833333 |\n| #4 | 2 | 1 | 1.25 |" in page


@pytest.mark.parametrize("weights", [[2, 2, 2, 1, 1], [1, 1, 2, 3, 0]])
def test_most_samples_may_count_more_than_once(tmp_path, weights):
    page = page_of(tmp_path, *weighted(weights, rows=5))
    assert "usual cause: samples count differently.**" in page
