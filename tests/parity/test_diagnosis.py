"""A diagnosis of correct runs finds nothing. Of faults: tests/traindiff, and `make mutants`."""

from collections import defaultdict

import pytest
from cases import Case, chosen, parametrized
from group import job, reference_captures

from traindiff.capture_files import Capture
from traindiff.diagnosis import diagnose, markdown
from traindiff.pair import Pair

SHORT = [Case("tp_sp", "llama2"), Case("zero3", "llama2"), Case("pp", "moe")]
"""One of each engine."""
LONG = [Case(*names, long=True) for names in (("fsdp", "llama2"), ("cp", "llama2"), ("ep", "moe"), ("cp", "vit"))]


def folder_of(captures, case):
    return captures / f"{case.workload}-{case.dtype}"


@pytest.fixture(scope="module")
def captures(request, server, tmp_path_factory, tiny_data):
    """Folder with the captures of the cases, and of what each is compared with."""
    folder = tmp_path_factory.mktemp("captures")
    references, actual = [], defaultdict(list)
    for case in chosen(request):
        place, data = folder_of(folder, case), tiny_data / case.workload
        if not place.exists():
            place.mkdir()
            references += reference_captures(case.reference.run(), case.run(), data, place)
        weights = place / "initial.safetensors"
        actual[case.native].append(job(case.run(), data, weights, place / case.name, capture=True))
    server.work_off(references, folder, 1)
    for jobs in actual.values():
        server.work_off(jobs, folder, 2)
    return folder


@parametrized([*SHORT, *LONG])
def test_nothing_differs_in_a_correct_run(captures, case):
    place = folder_of(captures, case)
    found = diagnose(Pair(*(Capture(place / name) for name in (case.name, "single", "twin"))))
    assert found.sentence == "Nothing differs in steps 0-3.", markdown(found, "")
