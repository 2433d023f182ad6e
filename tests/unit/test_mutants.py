"""The faults of `make mutants` still have their places in the code."""

import pytest
from faults import FAULTS

from helpers.common import ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place(fault):
    assert (ROOT / fault.file).read_text().count(fault.right) == 1
    assert fault.right != fault.wrong
