"""What only a forward pass shows of a model: its output's type, and the parameters that the loss depends on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from shardlab import models
from shardlab.errors import UserError
from shardlab.models import contents
from shardlab.models.weights import allocate
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.types import Run

PASSES, ROWS = 6, 2
"""Forward passes, and samples of each: not one, which batch norm does not take."""


def find_properties(run: Run, task: Task, model: nn.Module) -> dict[str, list[str]]:
    """Return the properties (see models/contents.py) that a model with weights shows on the first training samples.

    Only graphs are looked at: there is no backward pass, and no gradient in memory. Buffers are restored.

    Raises:
        UserError: the model returns something else than tasks take.
    """
    blocks = contents.blocks_of(run, model)
    blocks = [block for block in blocks if block not in contents.shared_outside(model, blocks)]
    passes = []
    with _restored(model), contents.read_outside(model, blocks) as outside:
        drawn = _generators(task.device)
        for number in range(PASSES):
            rows = np.arange(number * ROWS, (number + 1) * ROWS) % task.samples("train")
            passes.append({*_unused(run, task, model, task.micro_batch("train", rows))})
        random = [] if _generators(task.device) == drawn else contents.dropouts(model, run.model.args)
    never = set.intersection(*passes)
    properties = {"outside": outside, "unused": never, "unused_sometimes": set.union(*passes) - never, "random": random}
    return {key: sorted(names) for key, names in properties.items() if names}


def unused_without_weights(run: Run, task: Task) -> list[str]:
    """Return the parameters that the loss of the first training samples does not depend on, from fake tensors.

    Without weights the forward pass of a model that looks at values cannot run: none are returned.

    Raises:
        UserError: see ``find_properties``.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = models.build(run.model, run.task, getattr(torch, run.recipe.dtype))
    micro = task.micro_batch("train", np.arange(ROWS) % task.samples("train"))
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            allocate(model, torch.device("cpu"))
            batch = {name: torch.empty(values.shape, dtype=values.dtype) for name, values in micro.batch.items()}
            return _unused(run, task, model, replace(micro, batch=batch))
    except UserError:
        raise
    except Exception:
        return []


def _unused(run: Run, task: Task, model: nn.Module, micro: MicroBatch) -> list[str]:
    outputs: Any = task.outputs(model, micro.batch)
    contents.check_outputs(run, outputs)
    loss = task.counted_loss(outputs, micro)
    if not loss.requires_grad:
        raise UserError(
            f"the loss of model {run.model.name} depends on no trained parameter; do not detach its output."
        )
    return contents.unused(model, loss)


def _generators(device: torch.device) -> list[list[int]]:
    """Return the states of the generators that layers on a device draw from."""
    states = [torch.random.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return [state.tolist() for state in states]


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore buffers, the mode and the state of the random numbers afterwards."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    was_training = model.training
    model.train()
    with torch.random.fork_rng():
        yield
    model.train(was_training)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
