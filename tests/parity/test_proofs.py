"""The proof of a strategy on a tiny model finds faults, names the parameter, and survives a rank that crashes."""

import json
import os
import subprocess
import sys

import pytest
import transformers

from helpers.common import ROOT
from shardlab.proof import tiny_config


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """{case: (verdict, reason)} of faulty_proofs.py."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_config.write(transformers.LlamaConfig(), folder)
    words = [sys.executable, str(ROOT / "tests/parity/faulty_proofs.py"), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("case", "verdict", "reason"),
    [
        ("ddp", "equal", ""),
        ("not_reduced", "differs", "gradient of model.layers.*.mlp.up_proj.weight differs by"),
        ("scaled_on_one_rank", "differs", "gradient of model.layers.*"),
        ("crashed", "failed", "ZeroDivisionError: of one rank"),
        ("after_the_crash", "equal", ""),
        ("updated_twice", "differs", "update of "),
        ("counted_twice", "differs", "gradient norm differs by 41 % (0 of 39 gradients"),
        ("narrow", "differs", "of its largest value"),
    ],
)
def test_a_fault_is_found_and_named(proofs, case, verdict, reason):
    found, why = proofs[case]
    assert found == verdict
    assert reason in why
