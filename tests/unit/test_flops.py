"""Floating-point operations of a step, compared with the published formula; peaks of devices."""

import numpy as np
import pytest
import torch

from helpers.common import build, tiny_run
from shardlab.measure import device_benchmark, flops
from shardlab.runtime import tasks
from shardlab.schema import check
from shardlab.settings.devices import peak
from shardlab.settings.sites import Hardware


@pytest.mark.parametrize("workload", ["llama2", "moe"])
def test_a_decoder_computes_what_the_formula_of_palm_says(tiny_data, workload):
    """6 N + 12 L d s a token (Chowdhery et al., 2022, appendix B), N without embeddings and norms, and with the
    experts that are chosen alone.
    """
    run, length = tiny_run(workload), 32
    args = run.model.args
    task = tasks.load(run.task, tiny_data / workload, torch.float32, torch.device("cpu"))
    active = sum(
        p.numel() * (args["top_k"] / args["experts"] if ".experts." in name else 1)
        for name, p in build(run).named_parameters()
        if p.dim() > 1 and "embedding" not in name
    )
    found = flops.count_flops(run, task, task.micro_batch("train", np.arange(3)))
    assert found == 3 * length * (6 * active + 12 * args["layers"] * args["dim"] * length)


def test_figures_of_a_device_are_those_of_the_slowest_rank_and_of_a_site_s_file(monkeypatch):
    """A product has two operations a value, and a copy reads and writes."""
    monkeypatch.setattr(device_benchmark, "SIZE_ON_CPU", 100)
    monkeypatch.setattr(device_benchmark, "BYTES_ON_CPU", 2000)
    monkeypatch.setattr(device_benchmark, "SECONDS", 0.01)
    check(Hardware, device_benchmark.figures(torch.device("cpu")), "figures")
    ranks = []
    for seconds in (1e-3, 2e-3):
        monkeypatch.setattr(device_benchmark, "_repeated", lambda work, device, seconds=seconds: seconds)
        ranks.append(device_benchmark.figures(torch.device("cpu")))
    slowest = {"matrix_tflops": {"float32": 1e-3, "bf16": 1e-3}, "memory_gb_per_second": 2e-3}
    assert device_benchmark.least(ranks) == device_benchmark.least(ranks[::-1]) == slowest


def test_peaks_are_found_by_a_devices_name():
    assert peak("NVIDIA H200", "bf16") == 989.4e12
    assert peak("NVIDIA H100 PCIe", "bf16") == 756e12, "the longer name first"
    assert peak("NVIDIA A100-SXM4-40GB", "float64") == 19.5e12, "with tensor cores"
    assert peak("Tesla V100-SXM2-32GB", "bf16") is None, "it has none"
    assert peak("cpu", "float32") is None
