"""Floating-point operations of a step, compared with the published formula; peaks of devices."""

import numpy as np
import torch

from helpers.common import build, tiny_run
from shardlab.measure import device_benchmark, flops
from shardlab.runtime import tasks
from shardlab.schema import check
from shardlab.settings.devices import peak
from shardlab.settings.sites import Hardware


def counted(workload, tiny_data, samples=3):
    run = tiny_run(workload)
    task = tasks.load(run.task, tiny_data / workload, torch.float32, torch.device("cpu"))
    return run, flops.count_flops(run, task, task.micro_batch("train", np.arange(samples)))


def test_a_decoder_computes_what_the_formula_of_palm_says(tiny_data):
    """6 N + 12 L d s a token (Chowdhery et al., 2022, appendix B), N without embeddings and norms."""
    run, found = counted("llama2", tiny_data)
    args, length = run.model.args, 32
    matrices = sum(p.numel() for name, p in build(run).named_parameters() if p.dim() > 1 and "embedding" not in name)
    tokens = 3 * length
    attention = 12 * args["layers"] * args["dim"] * length
    assert found == tokens * (6 * matrices + attention)


def test_experts_compute_what_their_active_parameters_do(tiny_data):
    """As above, with top_k of the experts in N."""
    run, found = counted("moe", tiny_data)
    args, length = run.model.args, 32
    active = sum(
        p.numel() * (args["top_k"] / args["experts"] if ".experts." in name else 1)
        for name, p in build(run).named_parameters()
        if p.dim() > 1 and "embedding" not in name
    )
    assert found == 3 * length * (6 * active + 12 * args["layers"] * args["dim"] * length)


def test_figures_of_a_device_are_those_of_the_slowest_rank_and_of_a_site_s_file(monkeypatch):
    """A product has two operations a value, and a copy reads and writes."""
    monkeypatch.setattr(device_benchmark, "SIZE_ON_CPU", 100)
    monkeypatch.setattr(device_benchmark, "BYTES_ON_CPU", 2000)
    monkeypatch.setattr(device_benchmark, "SECONDS", 0.01)
    found = check(Hardware, device_benchmark.figures(torch.device("cpu")), "figures")
    assert found.matrix_tflops.keys() == {"float32", "bf16"}
    ranks = []
    for seconds in (1e-3, 2e-3):
        monkeypatch.setattr(device_benchmark, "_repeated", lambda work, device, seconds=seconds: seconds)
        ranks.append(device_benchmark.figures(torch.device("cpu")))
    assert ranks[0] == {"matrix_tflops": {"float32": 2e-3, "bf16": 2e-3}, "memory_gb_per_second": 4e-3}
    slowest = {"matrix_tflops": {"float32": 1e-3, "bf16": 1e-3}, "memory_gb_per_second": 2e-3}
    assert device_benchmark.least(ranks) == device_benchmark.least(ranks[::-1]) == slowest


def test_peaks_are_found_by_a_devices_name():
    assert peak("NVIDIA H200", "bf16") == 989.4e12
    assert peak("NVIDIA H100 PCIe", "bf16") == 756e12, "the longer name first"
    assert peak("NVIDIA A100-SXM4-40GB", "float64") == 19.5e12, "with tensor cores"
    assert peak("Tesla V100-SXM2-32GB", "bf16") is None, "it has none"
    assert peak("cpu", "float32") is None
