"""Operations of a step, compared with the published formula; every operator that communicates is known."""

import numpy as np
import pytest
import torch
import torch.distributed._functional_collectives  # registers some of the operators
import torch.distributed.tensor._collective_utils

from helpers.common import build, tiny_run
from shardlab.measure import flops, traffic
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


UNUSED = {"c10d.gather_", "c10d.scatter_", "_c10d_functional.batch_p2p_ops"}
"""Operators that no strategy uses; a training that does is refused."""


def test_every_operator_that_communicates_is_counted_silent_or_refused():
    """In this version of PyTorch; add a new one to its table. What is counted: tests/parity/theory.py."""
    every = {name.partition(".")[0].replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    counted = {name for name in every if name.partition(".")[0] in traffic.COUNTED}
    assert {name for name in counted if not traffic.collective_of(name)} == traffic.SENDS_NOTHING | UNUSED
