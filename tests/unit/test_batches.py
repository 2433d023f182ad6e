"""Batches: equal with and without prefetching, from files larger than memory; what tasks need, their chunks."""

import json
import resource

import numpy as np
import pytest
import torch

from helpers.common import tiny_run, with_weights
from shardlab.errors import UserError
from shardlab.parallel import context
from shardlab.runtime import tasks
from shardlab.runtime.batches import PrefetchLoader, Steps
from shardlab.runtime.distributed import World

CPU = torch.device("cpu")
WINDOWS, LENGTH = 6_000_000, 2048
"""Of a token file of 49 GB."""


class Engine:
    chunks = None


def steps_of(workload, folder, **recipe):
    run = tiny_run(workload, **recipe)
    task = tasks.load(run.task, folder, torch.float32, CPU)
    return Steps(task, Engine(), run.recipe, run.seed, World(0, 1, CPU))


def test_a_step_that_was_prepared_ahead_is_the_same(tiny_data):
    steps = steps_of("xsum", tiny_data / "xsum")
    with PrefetchLoader(steps, CPU, prepare=True) as ahead, PrefetchLoader(steps, CPU) as plain:
        for number in (0, 1, 3, 2):  # a resumed training starts at any step
            for ours, reference in zip(ahead[number].micro_batches, plain[number].micro_batches, strict=True):
                assert all(torch.equal(ours.batch[name], reference.batch[name]) for name in reference.batch)


def test_a_token_file_larger_than_the_memory_is_read_where_it_is_asked_for(tmp_path):
    """A sparse file, of which the disk holds next to nothing."""
    path = tmp_path / "train.safetensors"
    size = 4 * WINDOWS * LENGTH
    entry = {"dtype": "I32", "shape": [WINDOWS, LENGTH], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {}, "tokens": entry}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.seek(8 + len(header) + size - 4)
        file.write((77).to_bytes(4, "little"))
    assert path.stat().st_size > 49e9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = steps_of("llama2", tmp_path)
    batch = steps[steps.count - 1].micro_batches[0].batch["targets"]
    assert batch.shape == (5, LENGTH - 1)
    assert steps.task.batch("train", np.array([WINDOWS - 1]))["targets"][0, -1] == 77
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024  # KiB


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


def test_models_that_do_not_do_what_a_task_or_a_strategy_needs(tiny_data):
    linear = torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match=r"does not attend through models/_layers.py; use its Attention, or remove"):
        context.check(tiny_run("mnist"), loaded("mnist", tiny_data)[0], linear)
    with pytest.raises(UserError, match="set it to 1"):
        tasks.check_model(tiny_run("llama2", loss_chunks=3), linear)
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
