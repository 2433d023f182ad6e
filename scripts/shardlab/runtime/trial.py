"""What only a forward pass shows of a model: its output's type, what it changes, what the loss depends on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shardlab.errors import UserError
from shardlab.models import contents
from shardlab.models._positions import is_of_positions
from shardlab.runtime.batch_norm import statistics_kept, tracked
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.types import Run

PASSES, ROWS = 6, 2
"""Forward passes, and samples of each: not one, which batch norm does not take."""
DRAWS = 30
"""Forward passes of the same samples in which random numbers that no key explains have an effect, or have none."""


def find_properties(run: Run, task: Task, model: nn.Module) -> dict[str, list[str]]:
    """Return the properties (see models/contents.py) that a model with weights shows on the first training samples.

    Only graphs are looked at: there is no backward pass, and no gradient in memory. Batch norm's statistics are kept.

    Raises:
        UserError: the model returns something else than tasks take.
    """
    blocks = contents.blocks_of(run, model)
    blocks = [block for block in blocks if block not in contents.shared_outside(model, blocks)]
    passes = []
    with _restored(model), statistics_kept(model), contents.read_outside(model, blocks) as outside:
        drawn, tensors = _generators(task.device), _tensors(model)
        attributes: dict[str, Any] = {}
        for number in range(PASSES):
            rows = np.arange(number * ROWS, (number + 1) * ROWS) % task.samples("train")
            passes.append({*_unused(run, task, model, task.micro_batch("train", rows))})
            attributes = attributes or _attributes(model)  # the first pass may keep what the others need
        with torch.no_grad():  # some change their weights there (RWKV's rescale_every)
            task.outputs(model.eval(), task.micro_batch("train", rows).batch)
        model.train()
        changing = _differing(tensors, _tensors(model)) + _differing(attributes, _attributes(model))
        random = []
        if _generators(task.device) != drawn:
            random = contents.dropouts(model, run.model.args)
            random = random or ["in its forward"] * _is_random(task, model)
    never = set.intersection(*passes)
    properties = {"changing": changing, "outside": outside, "unused": never}
    properties |= {"unused_sometimes": set.union(*passes) - never, "random": random}
    return {key: sorted(names) for key, names in properties.items() if names}


def _unused(run: Run, task: Task, model: nn.Module, micro: MicroBatch) -> list[str]:
    outputs: Any = task.outputs(model, micro.batch)
    contents.check_outputs(run, outputs)
    loss = task.counted_loss(outputs, micro)
    if not loss.requires_grad:
        raise UserError(
            f"the loss of model {run.model.name} depends on no trained parameter; do not detach its output."
        )
    return contents.unused(model, loss)


def _is_random(task: Task, model: nn.Module) -> bool:
    """Return whether the loss of the same samples changes from one forward pass to the next."""
    micro = task.micro_batch("train", np.arange(ROWS) % task.samples("train"))
    with torch.no_grad():
        losses = (float(task.counted_loss(task.outputs(model, micro.batch), micro)) for _ in range(DRAWS))
        first = next(losses)
        return any(loss != first for loss in losses)


def _generators(device: torch.device) -> list[list[int]]:
    """Return the states of the generators that layers on a device draw from."""
    states = [torch.random.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state())
    return [state.tolist() for state in states]


def _tensors(model: nn.Module) -> dict[str, Any]:
    """Return copies of the saved buffers but for batch norm's statistics, and how often each parameter was changed."""
    statistics = {id(buffer) for each in tracked(model) for buffer in each.buffers(recurse=False)}
    buffers = {
        name: value.clone() for name, value in contents.saved_buffers(model).items() if id(value) not in statistics
    }
    return buffers | {name: value._version for name, value in model.named_parameters()}


def _attributes(model: nn.Module) -> dict[str, Any]:
    """Return copies of the other buffers, and of numbers, tensors and states of generators among the attributes."""
    saved = contents.saved_buffers(model)
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():
        if is_of_positions(module):
            continue
        own = {f"{prefix}.{name}".lstrip("."): value for name, value in module.named_buffers(recurse=False)}
        found |= {name: value.clone() for name, value in own.items() if name not in saved}
        for key, value in vars(module).items():
            value = value.get_state() if isinstance(value, torch.Generator) else value
            if isinstance(value, Tensor | int | float):
                found[f"{prefix}.{key}".lstrip(".")] = value.detach().clone() if isinstance(value, Tensor) else value
    return found


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [name for name, value in before.items() if not contents.same(value, after.get(name))]


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the mode and the state of the random numbers afterwards."""
    was_training = model.training
    model.train()
    with torch.random.fork_rng():
        yield
    model.train(was_training)
