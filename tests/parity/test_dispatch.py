"""Experts split over ranks equal experts in one process: outputs, and gradients of tokens, weights and parameters."""

import dispatch
import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture(scope="module", params=["ours-2", "ours-4", "library-4"])
def written(request, server, tmp_path_factory):
    """Whose experts, number of ranks, and the tensors that they wrote."""
    kind, ranks = request.param[:-2], int(request.param[-1])
    folder = tmp_path_factory.mktemp("dispatch")
    server.work_off([{"dispatch": kind, "output": str(folder)}], folder, ranks)
    files = [load_file(folder / f"rank-{rank}.safetensors") for rank in range(ranks)]
    return kind, ranks, {name: value for file in files for name, value in file.items()}


def test_split_experts_equal_one_process(written):
    """Also on a rank without tokens, and on one whose experts have none: their gradient is 0, and there is one."""
    kind, ranks, found = written
    expected = dispatch.expected(ranks, kind == "library")
    if kind == "ours":
        rows = [sum(int(values.pop(f"computed-of-{rank}")) for rank in range(ranks)) for values in (found, expected)]
        assert rows[0] == rows[1] == dispatch.TOP_K * sum(dispatch.LENGTHS[:ranks])
    names = [name for name in expected if "-of-" not in name]
    for name in names:
        parts = expected.pop(name).chunk(ranks)
        expected |= {f"{name}-{rank}": part for rank, part in enumerate(parts)}
    assert found.keys() == expected.keys()
    assert all(value.shape == expected[name].shape for name, value in found.items())
    apart = {name: float((value - expected[name]).abs().sum()) for name, value in found.items()}
    assert {name: value for name, value in apart.items() if not value <= 1e-10} == {}
    if ranks == 4:
        assert found["output-of-1"].numel() == 0
        assert not any(torch.any(found[f"{name}-2"]) for name in names)
