"""Tensor bytes as they are counted. Those of trainings against theory: test_parity.py."""

import numpy as np
import pytest
import torch
from group import job, of_gradients
from safetensors.torch import load_file

from helpers.common import initial_weights, save_initial, tiny_run, with_weights
from shardlab.measure.memory import Memory
from shardlab.models.weights import save
from shardlab.runtime import tasks


@pytest.mark.timeout(180)
def test_experts_that_no_token_chooses_are_trained(server, tmp_path, tiny_data):
    """All tokens choose experts of the first of two ranks: the others' gradients are 0."""
    run, single = (tiny_run("moe", name, dtype="float64") for name in ("ep", "single"))
    weights, path = initial_weights(run), tmp_path / "crowded.safetensors"
    for name, value in weights.items():
        if name.endswith("router.bias"):
            value[:2] = 10.0
    save(weights.items(), weights, path)
    for each, ranks in ((single, 1), (run, 2)):
        server.work_off([job(each, tiny_data / "moe", path, tmp_path / each.strategy)], tmp_path, ranks)
    gradients, expected = (load_file(tmp_path / name / "gradients.safetensors") for name in ("ep", "single"))
    assert any(not value[2:].any() for name, value in expected.items() if name.endswith("experts.gate"))
    assert of_gradients(gradients, expected)["gradient"] < 1e-10


def test_activations_are_what_autograd_saves(tiny_data, tmp_path):
    """Within 5 %, and the outputs: the rest are results that the next operator takes and nobody keeps."""
    run = tiny_run("llama2")
    save_initial(run, tmp_path / "initial")
    model, device = with_weights(run), torch.device("cpu")
    task = tasks.load(run.task, tiny_data / "llama2", torch.float32, device)
    batch = task.batch("train", np.arange(5))
    known = {value.data_ptr() for value in (*model.parameters(), *batch.values())}
    saved = {}

    def keep(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = (storage.nbytes(), value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        outputs = task.outputs(model, batch)
        loss = task.loss(outputs, batch)
    keep(outputs)  # the caller of the model has them, too
    expected = sum(size for size, _ in saved.values())
    del loss, outputs
    saved.clear()
    memory = Memory(device)
    with memory:
        loss = task.loss(task.outputs(model, batch), batch)
        held = memory.figures()["at_peak"]["activations"]
        loss.backward()
    assert held == pytest.approx(expected, rel=0.05)
