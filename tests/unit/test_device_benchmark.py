"""Measured throughput of a device, in the keys of a site's file."""

import torch

from shardlab.measure import device_benchmark
from shardlab.schema import check
from shardlab.settings.sites import Hardware


def test_figures_are_those_of_a_site_s_file(monkeypatch):
    monkeypatch.setattr(device_benchmark, "SECONDS", 0.01)
    monkeypatch.setattr(device_benchmark, "SIZE_ON_CPU", 64)
    monkeypatch.setattr(device_benchmark, "BYTES_ON_CPU", 2**20)
    found = check(Hardware, device_benchmark.figures(torch.device("cpu")), "figures")
    assert found.matrix_tflops.keys() == {"float32", "bf16"}
    assert found.memory_gb_per_second


def test_the_slowest_rank_counts():
    ranks = [
        {"matrix_tflops": {"bf16": bf16}, "memory_gb_per_second": memory} for bf16, memory in ((2.0, 9.0), (3.0, 1 / 3))
    ]
    assert device_benchmark.least(ranks) == {"matrix_tflops": {"bf16": 2.0}, "memory_gb_per_second": 0.333}


def test_a_product_has_two_operations_a_value_and_a_copy_reads_and_writes(monkeypatch):
    monkeypatch.setattr(device_benchmark, "SIZE_ON_CPU", 100)
    monkeypatch.setattr(device_benchmark, "BYTES_ON_CPU", 2000)
    monkeypatch.setattr(device_benchmark, "_repeated", lambda work, device: 1e-3)
    found = device_benchmark.figures(torch.device("cpu"))
    assert found == {"matrix_tflops": {"float32": 2e-3, "bf16": 2e-3}, "memory_gb_per_second": 4e-3}
