"""The faults of `make mutants` have their places in the code, and a crash of a fault catches nothing."""

import subprocess
import sys

from faults import FAULTS

from helpers.common import ROOT
from traindiff.comparison import STAGES as OF_STEPS
from traindiff.formulas import CHECKS


def test_a_fault_has_its_place_and_tests():
    for fault in FAULTS:
        text = (ROOT / fault.file).read_text()
        assert fault.put_into(text) != text
        named = [test.partition("::")[0] for test in fault.tests if test != "--long"]
        assert named
        assert all((ROOT / name).is_file() for name in named)


def test_a_fault_uses_no_name_that_is_not_there(tmp_path):
    """It would crash, which catches nothing."""
    for fault in FAULTS:
        if fault.file.endswith(".py"):
            text = fault.put_into((ROOT / fault.file).read_text())
            (tmp_path / f"{fault.name.replace('/', ' ')}.py").write_text(text)
    call = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "--output-format=concise", tmp_path]
    found = subprocess.run(call, text=True, capture_output=True, check=False)
    assert not found.returncode, found.stdout


def test_diagnoses_name_causes_of_the_table():
    diagnoses = [fault.diagnosis for fault in FAULTS if fault.diagnosis]
    assert {each.cause for each in diagnoses if each.cause} <= {*CHECKS}
    assert {each.stage for each in diagnoses if not each.cause} <= {*OF_STEPS, "evaluation"}
    assert not [fault.name for fault in FAULTS if fault.diagnosis and fault.unnamed]
