"""Tasks: losses are sums over real targets, independent of padding and of how a batch is split."""

import numpy as np
import pytest
import torch

from helpers.common import tiny_run, with_weights
from shardlab.errors import UserError
from shardlab.parallel import context
from shardlab.runtime import tasks

CPU = torch.device("cpu")


def loaded(workload, tiny_data):
    run = tiny_run(workload, dtype="float64")
    return tasks.load(run.task, tiny_data / workload, torch.float64, CPU), with_weights(run)


@pytest.mark.parametrize("workload", ["llama2", "xsum"])
def test_in_chunks_the_logits_are_never_whole(workload, tiny_data):
    """That the loss is the same tests/parity/test_reference.py shows."""
    whole, model = loaded(workload, tiny_data)
    chunked = tasks.task_for(tiny_run(workload, dtype="float64", loss_chunks=3), tiny_data / workload, CPU)
    lengths = []
    model.output.register_forward_hook(lambda _module, _inputs, logits: lengths.append(logits.shape[1]))
    for task in (whole, chunked):
        micro = task.micro_batch("train", np.arange(3), rows=5)
        task.counted_loss(task.outputs(model, micro.batch), micro).backward()
    all_of_them, *chunks = lengths
    forward, backward = chunks[:3], chunks[3:]
    assert sum(forward) == sum(backward) == all_of_them
    assert max(chunks) == -(-all_of_them // 3)


def test_context_parallelism_needs_a_model_that_attends_through_ours(tiny_data):
    task, _ = loaded("mnist", tiny_data)
    with pytest.raises(UserError, match=r"does not attend through models/_layers.py; use its Attention, or remove"):
        context.check(tiny_run("mnist"), task, torch.nn.Linear(1, 1))


def test_models_that_do_not_do_what_a_task_needs(tiny_data):
    run = tiny_run("llama2", loss_chunks=3)
    with pytest.raises(UserError, match="set it to 1"):
        tasks.check_model(run, torch.nn.Linear(1, 1))
    run = tiny_run("instruct")
    tasks.check_model(run, loaded("llama2", tiny_data)[1])
    with pytest.raises(UserError, match="or make the pieces of its chain take `positions`, as llama's do"):
        tasks.check_model(run, loaded("moe", tiny_data)[1])


def test_rouge_of_a_perfect_model(tiny_data):
    task, _ = loaded("xsum", tiny_data)
    batch = task.batch("test", np.arange(task.samples("test")))

    class Perfect(torch.nn.Module):
        def forward(self, document, summary, mask):
            targets = batch["targets"].clamp(min=0)
            position = min(summary.shape[1], targets.shape[1]) - 1
            return torch.nn.functional.one_hot(targets[:, : position + 1], 1024).double()

    assert task.score(Perfect(), torch.empty(0), batch) == pytest.approx(task.samples("test"))
