"""Comparison of what ranks read and what their modules return: which places of one device's tensors they have."""

import json

import pytest
import torch
from safetensors.torch import save_file

from traindiff import comparison, diagnosis, outputs, page, sample_weights
from traindiff.capture_files import Capture, rank_file
from traindiff.pair import Pair

LENGTHS = {0: 8, 1: 3}
"""Sample: its length."""


def whole(samples, length):
    """A module's output for some samples, padded to a length: (samples, length, 4)."""
    values = torch.stack([torch.arange(4 * length).view(length, 4) + 1000.0 * (sample + 1) for sample in samples])
    for row, sample in enumerate(samples):
        values[row, LENGTHS[sample] :] = 0
    return values.double()


def targets(samples, length):
    """Targets of some samples, padded to a length."""
    values = whole(samples, length)[..., 0]
    return values.masked_fill(values == 0, -100).long()


def write(folder, ranks, mesh):
    """A capture of one step; each rank: its place, its part of sequences, its micro-batches (samples, tensors)."""
    folder.mkdir()
    about = {"dtype": "float64", "mesh": mesh, "sequences": ["targets"], "whole_sequences": [], "ranks": []}
    about["at_first_position"] = ["labels"]
    for number, (place, split, micro_batches) in enumerate(ranks):
        sequence = {"ranks": mesh.get("cp", 1), "rank": split, "head_tail": False}
        about["ranks"].append({"place": place, "data_rank": place.get("dp", 0), "sequence": sequence})
        path = rank_file(folder, 0, number)
        path.parent.mkdir(exist_ok=True)
        tensors = {f"{n}/{name}": v for n, (_, found) in enumerate(micro_batches) for name, v in found.items()}
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)
        samples = [found for found, _ in micro_batches]
        notes = {"indices": samples, "counts": [len(each) for each in samples], "order": ["up"]}
        path.with_suffix(".json").write_text(json.dumps(notes))
    (folder / "capture.json").write_text(json.dumps(about))
    return Capture(folder)


def tensors(samples, length, keep=slice(None), wrong=None):
    """Targets and output of some samples at these positions; ``wrong``: a value that is put into the output."""
    output = whole(samples, length)[:, keep]
    if wrong is not None:
        output[-1, 0, 0] = wrong
    return {"batch/targets": targets(samples, length)[:, keep], "output/up/0": output}


def differing(tmp_path, ranks, mesh, single=None):
    """Names of the rows that differ."""
    single = single or [([0, 1], tensors([0, 1], 8))]
    reference = write(tmp_path / "single", [({}, 0, single)], {})
    pair = Pair(write(tmp_path / "other", ranks, mesh), reference)
    return {row.name: row.differs for row in outputs.rows(pair, 0, ("batch", "input", "output"))}


EQUAL = {"batch targets": False, "up/0": False}


@pytest.mark.parametrize("wrong", [None, 7.0, float("nan"), float("inf")])
def test_parts_of_sequences_that_a_data_parallel_rank_pads_to_a_shorter_length(tmp_path, wrong):
    def of_rank(dp, cp):
        samples, length = [dp], (8, 4)[dp]
        keep = slice(cp * length // 2, (cp + 1) * length // 2)
        return {"dp": dp, "cp": cp}, cp, [(samples, tensors(samples, length, keep, wrong if dp and cp else None))]

    ranks = [of_rank(dp, cp) for dp in (0, 1) for cp in (0, 1)]
    assert differing(tmp_path, ranks, {"dp": 2, "cp": 2}) == EQUAL | {"up/0": wrong is not None}


def test_sequence_parallelism_of_sequences_that_a_data_parallel_rank_pads_to_a_shorter_length(tmp_path):
    def of_rank(dp, tp):
        length = (8, 4)[dp]
        keep = slice(tp * length // 2, (tp + 1) * length // 2)
        batch = {"batch/targets": targets([dp], length)}
        return {"dp": dp, "tp": tp}, 0, [([dp], tensors([dp], length, keep) | batch)]

    ranks = [of_rank(dp, tp) for dp in (0, 1) for tp in (0, 1)]
    assert differing(tmp_path, ranks, {"dp": 2, "tp": 2}) == EQUAL


def test_micro_batches_that_one_device_pads_to_other_lengths(tmp_path):
    single = [([1], tensors([1], 3)), ([0], tensors([0], 8))]
    assert differing(tmp_path, [({}, 0, [([0, 1], tensors([0, 1], 8))])], {}, single) == EQUAL


def test_the_smaller_micro_batch_of_one_device_counts(tmp_path):
    single = [([0, 0], tensors([0, 0], 8)), ([1], tensors([1], 3))]
    ranks = [({}, 0, [([1], tensors([1], 3, wrong=7.0))])]
    assert differing(tmp_path, ranks, {}, single) == EQUAL | {"up/0": True}


def test_a_module_that_returned_something_else_for_a_micro_batch_of_one_device(tmp_path):
    single = [([0], tensors([0], 8)), ([1], {"batch/targets": targets([1], 3)})]
    assert differing(tmp_path, [({}, 0, [([1], tensors([1], 3))])], {}, single) == {"batch targets": False}


def test_the_same_infinity_is_equal(tmp_path):
    masked = tensors([0, 1], 8, wrong=float("-inf"))
    ranks = [({}, 0, [([0, 1], masked)])]
    assert differing(tmp_path, ranks, {}, [([0, 1], masked)]) == EQUAL


def test_targets_in_chunks_of_other_sizes_are_not_compared(tmp_path):
    def micro_batches(keep, size):
        return [([0], {"batch/targets": targets([0], 8)[:, keep], "input/targets": torch.ones(1, 2, size)})]

    ranks = [({"cp": cp}, cp, micro_batches(slice(4 * cp, 4 * cp + 4), 2)) for cp in (0, 1)]
    assert differing(tmp_path, ranks, {"cp": 2}, micro_batches(slice(None), 4)) == {"batch targets": False}


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_losses_of_samples_are_a_sum_over_the_ranks_of_a_sequence_or_a_mean(tmp_path, factor):
    def micro_batches(keep, factor=1):
        own = targets([0], 8)[:, keep]
        return [([0], {"batch/targets": own, "output/up/0": factor * own.double().sum(1)})]

    ranks = [({"cp": cp}, cp, micro_batches(slice(4 * cp, 4 * cp + 4), factor)) for cp in (0, 1)]
    assert differing(tmp_path, ranks, {"cp": 2}, micro_batches(slice(None))) == EQUAL | {"up/0": factor == 3}


def test_ranks_without_the_first_position_have_no_class_token(tmp_path):
    def micro_batches(first):
        values = torch.ones(1, 4).double() if first else torch.zeros(1, 4).double()
        labels = torch.tensor([3 if first else -100])
        return [([0], {"batch/labels": labels, "batch/targets": targets([0], 8), "output/up/0": values})]

    ranks = [({"cp": cp}, cp, micro_batches(cp == 0)) for cp in (0, 1)]
    ranks = [
        (*rank[:2], [(s, found | {"batch/targets": targets([0], 8).chunk(2, 1)[rank[1]]}) for s, found in rank[2]])
        for rank in ranks
    ]
    assert differing(tmp_path, ranks, {"cp": 2}, micro_batches(True)) == EQUAL | {"batch labels": False}


def test_the_same_loss_that_is_not_finite_is_equal(tmp_path):
    captures = [Capture(tmp_path), Capture(tmp_path)]
    losses = [float("inf"), float("nan"), 1.0]
    for capture in captures:
        capture.about = {"dtype": "float64", "steps": [{"loss": loss} for loss in losses]}
    captures[0].about["steps"][2] = {"loss": float("nan")}
    rows = [[*comparison.STAGES["loss"](Pair(*captures), step)] for step in (0, 1, 2)]
    assert [row.differs for found in rows for row in found] == [False, False, True]


def test_ranks_with_the_same_values_that_are_not_finite_do_not_disagree():
    assert sample_weights._same((float("inf"), float("nan")), [float("inf"), float("nan")])
    assert not sample_weights._same((1.0, 1.0), [float("inf"), 1.0])
    assert not sample_weights._same((1.0, float("nan")), [1.0, 1.0])


def found_in_outputs(tmp_path, outputs, expected):
    """The diagnosis of ranks that return these outputs of `up` for their samples, where one device returns others."""
    samples = [[2 * rank, 2 * rank + 1] for rank in range(len(outputs))]
    single = [([*range(2 * len(outputs))], {"batch/targets": torch.ones(len(expected), 9), "output/up/0": expected})]
    reference = write(tmp_path / "single", [({}, 0, single)], {})
    save_file({"up.bias": BIAS}, tmp_path / "single/initial.safetensors")
    ranks = [
        ({"dp": n}, 0, [(samples[n], {"batch/targets": torch.ones(len(value), 9), "output/up/0": value})])
        for n, value in enumerate(outputs)
    ]
    return diagnosis.diagnose(Pair(write(tmp_path / "other", ranks, {"dp": len(outputs)}), reference))


BIAS = torch.tensor([0.5, -1.0, 2.0]).double()
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(
    ("second", "cause"),
    [
        (ROWS[2:] + BIAS, "bias: 1 times up.bias is added"),
        (ROWS[2:] - BIAS, "bias: -1 times up.bias is added"),
        (ROWS[2:] * 1.5 - 0.3 * ROWS[2:].flip(1), None),
        (ROWS[2:] + 0.1 * torch.tensor([[1.0, 2, 3], [3, -2, 1]]), None),
        (ROWS[:2], None),
    ],
)
def test_what_only_the_second_rank_returns_wrong_is_explained_by_its_own_rows(tmp_path, second, cause):
    found = found_in_outputs(tmp_path, [ROWS[:2], second], ROWS)
    assert [each.name for each in found.causes] == ([cause] if cause else [])
    assert "Of 2 ranks, only these differ: 1." in page.markdown(found, "")
