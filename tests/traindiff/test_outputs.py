"""Comparison of what the modules of ranks return: which places of one device's tensors they have."""

import json

import pytest
import torch
from safetensors.torch import save_file

from traindiff import diagnosis, outputs
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


def write(folder, ranks, mesh):
    """A capture of one step; each rank: its place, its part of sequences, its micro-batches (samples, length of the
    sequences that it reads, outputs by name).
    """
    folder.mkdir()
    about = {"dtype": "float64", "mesh": mesh, "has_first_position": False, "ranks": []}
    for number, (place, split, micro_batches) in enumerate(ranks):
        sequence = {"ranks": mesh.get("cp", 1), "rank": split, "head_tail": False}
        about["ranks"].append({"place": place, "data_rank": place.get("dp", 0), "sequence": sequence})
        path = rank_file(folder, 0, number)
        path.parent.mkdir(exist_ok=True)
        named = {f"{n}/output/{name}": v for n, (*_, found) in enumerate(micro_batches) for name, v in found.items()}
        save_file({name: value.contiguous() for name, value in named.items()}, path)
        samples = [found for found, *_ in micro_batches]
        notes = {"indices": samples, "counts": [len(each) for each in samples], "order": ["up"]}
        notes["lengths"] = [[[length], []] for _, length, _ in micro_batches]
        path.with_suffix(".json").write_text(json.dumps(notes))
    (folder / "capture.json").write_text(json.dumps(about))
    return Capture(folder)


def micro_batch(samples, length, keep=slice(None), wrong=None):
    """Some samples with the output at these positions; ``wrong``: a value that is put into it."""
    output = whole(samples, length)[:, keep]
    if wrong is not None:
        output[-1, 0, 0] = wrong
    return samples, output.shape[1], {"up/0": output}


def differs(tmp_path, ranks, mesh, single=None):
    """Whether the output of `up` differs; None: it is not compared."""
    single = single or [micro_batch([0, 1], 8)]
    reference = write(tmp_path / "single", [({}, 0, single)], {})
    pair = Pair(write(tmp_path / "other", ranks, mesh), reference)
    return {row.name: row.differs for row in outputs.rows(pair, 0)}.get("up/0")


@pytest.mark.parametrize(("axis", "wrong"), [("cp", None), ("cp", 7.0), ("cp", float("nan")), ("tp", None)])
def test_parts_of_sequences_that_a_data_parallel_rank_pads_to_a_shorter_length(tmp_path, axis, wrong):
    def of_rank(dp, part):
        length = (8, 4)[dp]
        keep = slice(part * length // 2, (part + 1) * length // 2)
        samples, own, found = micro_batch([dp], length, keep, wrong if dp and part else None)
        # A tensor-parallel rank reads whole sequences.
        return {"dp": dp, axis: part}, part * (axis == "cp"), [(samples, own if axis == "cp" else length, found)]

    ranks = [of_rank(dp, part) for dp in (0, 1) for part in (0, 1)]
    assert differs(tmp_path, ranks, {"dp": 2, axis: 2}) is (wrong is not None)


def test_micro_batches_that_one_device_pads_to_other_lengths(tmp_path):
    single = [micro_batch([1], 3), micro_batch([0], 8)]
    assert differs(tmp_path, [({}, 0, [micro_batch([0, 1], 8)])], {}, single) is False


@pytest.mark.parametrize("factor", [1, 3])
def test_losses_of_samples_are_a_sum_over_the_ranks_of_a_sequence_or_a_mean(tmp_path, factor):
    def losses(keep, factor=1):
        own = whole([0], 8)[:, keep, 0]
        return [([0], own.shape[1], {"up/0": factor * own.sum(1)})]

    ranks = [({"cp": cp}, cp, losses(slice(4 * cp, 4 * cp + 4), factor)) for cp in (0, 1)]
    assert differs(tmp_path, ranks, {"cp": 2}, losses(slice(None))) is (factor == 3)


BIAS = torch.tensor([0.5, -1.0, 2.0]).double()
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()


def test_a_bias_that_only_the_second_rank_adds_is_explained_by_its_own_rows(tmp_path):
    reference = write(tmp_path / "single", [({}, 0, [([0, 1, 2, 3], 9, {"up/0": ROWS})])], {})
    save_file({"up.bias": BIAS}, tmp_path / "single/initial.safetensors")
    outputs = [([0, 1], 9, {"up/0": ROWS[:2]}), ([2, 3], 9, {"up/0": ROWS[2:] + BIAS})]
    ranks = [({"dp": rank}, 0, [output]) for rank, output in enumerate(outputs)]
    found = diagnosis.diagnose(Pair(write(tmp_path / "other", ranks, {"dp": 2}), reference))
    assert [each.name for each in found.causes] == ["bias: 1 times up.bias is added"]
    assert "Of 2 ranks, only these differ: 1." in diagnosis.markdown(found, "")
