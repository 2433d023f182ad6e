"""A diagnosis of correct runs finds nothing, and one of a fault the parameters and the cause."""

from collections import defaultdict

import foreign
import pytest
from cases import Case, with_marks
from group import job, reference_captures

from traindiff.capture_files import Capture
from traindiff.diagnosis import diagnose
from traindiff.page import markdown
from traindiff.pair import Pair

CORRECT = [Case(s, "llama2") for s in ("fsdp", "tp_sp", "cp", "zero3")]
CORRECT += [Case("ep", "moe"), Case("pp", "moe"), Case("cp", "vit")]
SHORT = [case for case in CORRECT if case.strategy in ("tp_sp", "pp", "zero3")]
"""One of each engine."""
FAULTY = Case("ddp", "llama2", fault="unreduced_norm")


def folder_of(captures, case):
    return captures / f"{case.workload}-{case.dtype}"


@pytest.fixture(scope="module")
def captures(request, server, tmp_path_factory, tiny_data):
    """Folder with the captures of the cases, and of what each is compared with."""
    folder = tmp_path_factory.mktemp("captures")
    references, actual = [], defaultdict(list)
    for case in (FAULTY, *(CORRECT if request.config.getoption("--long") else SHORT)):
        place, data = folder_of(folder, case), tiny_data / case.workload
        if not place.exists():
            place.mkdir()
            references += reference_captures(case.reference.run(), case.run(), data, place)
        weights = place / "initial.safetensors"
        actual[case.native].append(job(case.run(), data, weights, place / case.name, case.fault, capture=True))
    server.work_off(references, folder, 1)
    for jobs in actual.values():
        server.work_off(jobs, folder, 2)
    return folder


def found(captures, case):
    place = folder_of(captures, case)
    return diagnose(Pair(*(Capture(place / name) for name in (case.name, "single", "twin"))))


@with_marks(CORRECT, lambda case: case not in SHORT)
def test_nothing_differs_in_a_correct_run(captures, case):
    assert found(captures, case).sentence == "Nothing differs in steps 0-3.", markdown(found(captures, case), "")


def test_a_fault_is_found_and_named(captures):
    """`make mutants` diagnoses many more."""
    diagnosis = found(captures, FAULTY)
    assert diagnosis.sentence == (
        "First difference: step 0, gradient (5 of 21, first layers.0.attention_norm.weight); cause: not reduced: only "
        "rank 0 of 2 counts, 2 times."
    ), markdown(diagnosis, "")


def test_statistics_of_own_samples_are_a_place_and_gradients_of_samples_leave_no_trace(server, tmp_path, tiny_data):
    """Batch norm does not take one sample, and each forward pass moves its buffers."""
    foreign.register()
    # Each of two ranks has two samples in every step.
    run, single = (foreign.run_of("batch_norm", strategy, global_batch_size=4) for strategy in ("ddp", "single"))
    data = tiny_data / foreign.DATA
    server.work_off(reference_captures(single, run, data, tmp_path), tmp_path, 1)
    server.work_off([job(run, data, tmp_path / "initial.safetensors", tmp_path / "ddp", capture=True)], tmp_path, 2)
    pair = Pair(*(Capture(tmp_path / name) for name in ("ddp", "single", "twin")))
    page = markdown(diagnose(pair), "")
    assert "; no formula fits.**" in page, page
    assert "- `norm` is a BatchNorm1d." in page, page
    buffers = [capture.tensors("step0/weights")["norm.num_batches_tracked"] for capture in (pair.reference, pair.twin)]
    assert buffers == [1, 1]
