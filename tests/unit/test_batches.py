"""Batches: equal with and without prefetching, and read from files larger than memory."""

import json
import resource

import numpy as np
import torch

from helpers.common import tiny_run
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
