"""The faults of `make mutants` have their places in the code, and a crash of a fault catches nothing."""

import subprocess
import sys

import pytest
from fault import Fault
from faults import FAULTS, NOT_REPRODUCED
from judge import Failure

from helpers.common import ROOT
from traindiff.comparison import STAGES as OF_STEPS
from traindiff.formulas import CHECKS

HERE = str(ROOT / "tests/unit/test_mutants.py")
CRASHED = """a training failed:
Process Process-2:
Traceback (most recent call last):
  File "scripts/shardlab/train/step.py", line 91, in train_step
TypeError: unsupported operand type(s) for +: 'int' and 'str'
Traceback (most recent call last):
  File "scripts/shardlab/train/step.py", line 91, in train_step
RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1234
"""
INNER = """..F.
  E       {error}
  scripts/shardlab/runtime/device.py:194: {kind}
  =========================== short test summary info ============================
  FAILED tests/accelerator/uses.py::test_a_batch
assert 1 == 0"""


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


def test_diagnoses_name_causes_of_the_table_and_published_faults_are_reproduced_or_have_a_note():
    diagnoses = [fault.diagnosis for fault in FAULTS if fault.diagnosis]
    assert {each.cause for each in diagnoses if each.cause} <= {*CHECKS}
    assert {each.stage for each in diagnoses if not each.cause} <= {*OF_STEPS, "evaluation"}
    assert not [fault.name for fault in FAULTS if fault.diagnosis and fault.unnamed]
    assert all(each.note for each in NOT_REPRODUCED)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [("b = 1", "b = 3", "has its text 2 times"), ("c = 2", "c = = 2", "is no Python"), ("c = 2", "c = 2", "nothing")],
)
def test_a_fault_without_its_place_ends_the_program_with_its_name(right, wrong, words):
    with pytest.raises(SystemExit, match=f"a name: .*{words}"):
        Fault("a name", "x.py", right, wrong, ()).put_into("b = 1\nb = 1\nc = 2\n")


@pytest.mark.parametrize(
    ("names", "text", "catches"),
    [
        (["AssertionError"], "assert 1 == 2", True),
        (["Failed"], "DID NOT RAISE <class 'shardlab.errors.UserError'>", True),
        (["Unsupported", "UserError"], "zero1: DeepSpeed does not support float64", True),
        (["SystemExit"], "error: results/run.json is missing", True),
        (["SystemExit"], "1", False),
        *(([name], "...", False) for name in ("TypeError", "RuntimeError")),
        (["Failed"], "Timeout (>270.0s) from pytest-timeout.", False),
        (["UserError"], CRASHED, False),
        (["UserError"], CRASHED.replace("TypeError", "shardlab.errors.UserError"), True),
        (["AssertionError"], INNER.format(error="assert 2 == 3", kind="AssertionError"), True),
        (["AssertionError"], INNER.format(error="RuntimeError: wait for it first", kind="RuntimeError"), False),
    ],
)
def test_a_crash_catches_nothing(names, text, catches):
    assert Failure("t", (*names, "Exception"), text, HERE).catches() is catches
