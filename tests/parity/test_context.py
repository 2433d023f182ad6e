"""Attention over split sequences equals attention in one process: output and gradients of query, key and value."""

from itertools import product

import attention
import pytest
from safetensors.torch import load_file

CASES = [
    {"attention": name, "kv_heads": kv_heads, "causal": causal, "masked": masked, "head_tail": head_tail, "math": math}
    for name, kv_heads, (causal, masked), head_tail, math in product(
        attention.ALGORITHMS,
        (1, 2, 8),
        ((True, False), (True, True), (False, False), (False, True)),
        (True, False),
        (False, True),
    )
    if name == "ring" or not math
]


@pytest.fixture(scope="module", params=[2, 4])
def results(request, server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    jobs = [case | {"output": str(folder / name_of(case))} for case in CASES]
    for case in CASES:
        (folder / name_of(case)).mkdir()
    server.work_off(jobs, folder, request.param)
    return folder


def name_of(case):
    return "-".join(str(value) for value in case.values())


@pytest.mark.parametrize("name", attention.ALGORITHMS)
def test_split_sequences_equal_one_process(results, name):
    apart = {}
    for case in (case for case in CASES if case["attention"] == name):
        found = load_file(results / name_of(case) / "attention.safetensors")
        for key, value in attention.expected(case).items():
            apart[name_of(case), key] = float((found[key] - value).abs().max() / value.abs().max())
    assert apart
    wrong = [f"{key} of {case}: {value:.0e}" for (case, key), value in apart.items() if not value <= 1e-10]
    assert not wrong, "relative differences to one process: " + ", ".join(wrong)
