"""Experts split over ranks equal experts in one process: outputs, and gradients of tokens, weights and parameters."""

import dispatch
import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture(scope="module", params=[2, 4])
def written(request, server, tmp_path_factory):
    """Number of ranks, and the tensors that they wrote."""
    folder = tmp_path_factory.mktemp("dispatch")
    server.work_off([{"dispatch": True, "output": str(folder)}], folder, request.param)
    files = [load_file(folder / f"rank-{rank}.safetensors") for rank in range(request.param)]
    return request.param, {name: value for file in files for name, value in file.items()}


def test_split_experts_equal_one_process(written):
    """Also on a rank without tokens, and on one whose experts have none: their gradient is 0, and there is one."""
    ranks, found = written
    expected = dispatch.expected(ranks)
    rows = [sum(int(values.pop(f"computed-of-{rank}")) for rank in range(ranks)) for values in (found, expected)]
    assert rows[0] == rows[1] == dispatch.TOP_K * sum(dispatch.LENGTHS[:ranks])
    for name in ("gate", "up", "down"):
        parts = expected.pop(name).chunk(ranks)
        expected |= {f"{name}-{rank}": part for rank, part in enumerate(parts)}
    assert found.keys() == expected.keys()
    assert all(value.shape == expected[name].shape for name, value in found.items())
    apart = {name: float((value - expected[name]).abs().sum()) for name, value in found.items()}
    assert {name: value for name, value in apart.items() if not value <= 1e-10} == {}
    if ranks == 4:
        assert found["output-of-1"].numel() == 0
        assert not torch.any(found["gate-2"])
