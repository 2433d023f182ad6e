"""A diagnosis of correct runs finds nothing, and one of a fault the parameters and the cause."""

from collections import defaultdict

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
