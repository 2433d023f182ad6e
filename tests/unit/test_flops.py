"""Floating-point operations of a step, compared with the published formula."""

import numpy as np
import pytest
import torch

from helpers.common import build, tiny_run
from shardlab.measure import flops
from shardlab.runtime import tasks


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
