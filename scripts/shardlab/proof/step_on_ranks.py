"""What a rank does for a proof: one step of an engine, or of the plain model, and how much they differ."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shardlab import models, parallel
from shardlab.models import declared
from shardlab.models._float64 import Float64
from shardlab.models._losses import IGNORE
from shardlab.models._sequence import POSITIONS, documents_of
from shardlab.models.weights import materialize, save
from shardlab.proof.tiny_runs import arrays
from shardlab.runtime import distributed, optimizers, tasks, trial
from shardlab.runtime.batches import Steps
from shardlab.runtime.engine import Engine
from shardlab.settings.types import Run
from shardlab.train.step import train_step

WEIGHTS, EXPECTED = "model.safetensors", "expected.safetensors"
"""Files of a tiny model's folder: its initial weights, what one process computes."""
LOSS, NORM, GRADIENT, UPDATED = "loss", "gradient norm", "gradient of ", "update of "
"""Names of what is compared, the last two with a parameter's name."""
NOISE = 0.1
"""Standard deviation of what is added to initial weights: norms of ones and biases of zeros would hide mistakes."""
LOSS_TOLERANCE = 1e-6
"""Of the library's own loss, which may compute in float32."""
DOCUMENTS_TOLERANCE = 1e-9
"""Of the loss of packed rows, in float64."""
FLOORS = {GRADIENT: 1e-5, UPDATED: 1e-3}
"""A parameter's values are compared relative to their largest, or to this part of the model's largest: a bias in front
of a softmax has a gradient of nothing but rounding, and Adam's first update is a gradient by its size.
"""


class Difference(NamedTuple):
    """How far a quantity is from that of one process, relative to its largest value."""

    name: str
    value: float


def one_process(run: Run, folder: Path) -> tuple[str, dict[str, list[str]]]:
    """Write a tiny model's weights, and what the plain model computes from them in one step, without any engine.

    Return a sentence if no strategy trains it, and one device does not evaluate it, as the library would with another
    loss, or with one document in each row; empty if not. And the properties that runtime/trial.py finds.
    """
    dtype = getattr(torch, run.recipe.dtype)
    model = models.build(run.model, run.task, dtype)
    weights = models.initial_weights(run.model, run.task, dtype, run.seed)
    save(_noisy(weights), models.state(model), folder / WEIGHTS)
    materialize(model, folder / WEIGHTS, torch.device("cpu"))
    task = _task(run, folder)
    micro = task.micro_batch("train", np.arange(run.recipe.global_batch_size))
    model.train()
    seen = trial.find_properties(run, task, model)
    if changing := seen.get("changing"):
        return (
            f"the model has values that a forward pass changes ({', '.join(changing[:3])}), which no strategy trains."
        ), seen
    refusal = _other_loss(model, micro.batch["inputs"]) if run.task == "language_modelling" else ""
    if task.packed:
        total = _one_document_at_a_time(model, micro.batch)
        refusal = _of_documents(task, model, micro, total)
    else:
        total = task.counted_loss(task.outputs(model, micro.batch), micro)
    loss = total / task.targets_in(micro.batch)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = {name: value for name, value in models.state(model).items() if value.requires_grad}
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in parameters.items()}
    before = {name: value.detach().clone() for name, value in parameters.items()}
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    for parameter in parameters.values():
        if parameter.grad is not None:
            parameter.grad *= (float(run.recipe.max_grad_norm or math.inf) / (norm + 1e-6)).clamp(max=1.0)
    optimizers.build(run.recipe, parameters.values()).step()
    expected = {LOSS: loss.detach(), NORM: norm}
    expected |= {GRADIENT + name: gradient for name, gradient in gradients.items()}
    expected |= {UPDATED + name: (value - before[name]).detach() for name, value in parameters.items()}
    save_file({name: value.contiguous() for name, value in expected.items()}, folder / EXPECTED)
    return refusal, seen


def _other_loss(model: nn.Module, tokens: Tensor) -> str:
    """Return a sentence if the library's own loss of tokens (batch, length) is not the cross-entropy of its logits."""
    if "labels" not in declared.arguments(model):
        return ""
    tokens = tokens.contiguous()
    with Float64(), torch.no_grad():
        outputs = declared.own_forward(model)(model, input_ids=tokens, labels=tokens, return_dict=True)
        shifted = tasks.token_loss(outputs.logits[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel()
        in_place = tasks.token_loss(outputs.logits, tokens) / tokens.numel()
    loss = outputs.loss.double()
    if any(torch.isclose(loss, each.double(), rtol=LOSS_TOLERANCE, atol=0.0) for each in (shifted, in_place)):
        return ""
    if not loss.isfinite():
        return f"the loss of the tiny model is {loss:.4f}: a value of config.json makes it so."
    return (
        f"the library's own loss is {loss:.4f} at tiny sizes, where the cross-entropy is {shifted:.4f}: config.json "
        "asks for another term, which no strategy trains; set its coefficient to 0 under `model:` of the workload's "
        "size."
    )


def _of_documents(task: tasks.Task, model: nn.Module, micro: tasks.MicroBatch, alone: Tensor) -> str:
    """Return a sentence if the loss of packed rows is not that of their documents ``alone``."""
    with torch.no_grad():
        packed = task.counted_loss(task.outputs(model, micro.batch), micro)
    if torch.isclose(packed, alone.detach(), rtol=DOCUMENTS_TOLERANCE, atol=0.0):
        return ""
    return (
        "rows of several documents are not trained as documents one at a time: at tiny sizes their loss differs by "
        f"{float((packed / alone - 1).abs()):.0e}; use task language_modelling, or a model that tells the documents of "
        "a row apart."
    )


def _one_document_at_a_time(model: nn.Module, batch: tasks.Batch) -> Tensor:
    """Return the loss of packed rows, summed over their targets, of a model that is given no positions."""
    losses = []
    rows = enumerate(documents_of(batch[POSITIONS]))
    documents = [(row, numbers == number) for row, numbers in rows for number in numbers.unique()]
    # Shorter ones first: with dynamic NTK scaling the library keeps the frequencies of the longest sequence.
    for row, document in sorted(documents, key=lambda each: int(each[1].sum())):
        inputs, targets = (batch[name][row : row + 1, document] for name in ("inputs", "targets"))
        if (targets != IGNORE).any():
            losses.append(tasks.token_loss(model(inputs), targets))
    return torch.stack(losses).sum()


class RankStep(NamedTuple):
    """What a rank's step was."""

    differences: list[Difference]
    held: float
    """Part of the weights that this rank holds."""


def under_strategy(run: Run, folder: Path) -> RankStep:
    """Train the step of ``one_process`` with a strategy's engine; compare what this rank has of it."""
    world = distributed.world(run)
    task = _task(run, folder)
    engine = parallel.build(run, task, world, folder / WEIGHTS)
    engine.train(True)
    step = Steps(task, engine, run.recipe, run.seed, world)[0]
    gradients: dict[str, Tensor] = {}

    def observe(_: int, engine: Engine) -> None:
        gradients.update({GRADIENT + name: value.detach().clone() for name, value in engine.gradients()})

    metrics = train_step(engine, step, world, observe).metrics()
    scalars = {LOSS: metrics.loss, NORM: metrics.norm}
    found = {name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()} | gradients
    before = load_file(folder / WEIGHTS)
    expected = load_file(folder / EXPECTED)
    weights = {UPDATED + name: (value.detach(), before[name]) for name, value in engine.weights()}
    found |= {name: after - start for name, (after, start) in weights.items() if name in expected}
    held = sum(value.numel() for value in engine.tensors_by_kind()["weights"])
    whole = sum(value.numel() for name, value in expected.items() if name.startswith(GRADIENT))
    return RankStep([*differences(found, expected)], held / whole)


def differences(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Iterator[Difference]:
    """Yield the difference of each quantity, relative to its largest value; infinite if it is missing or has another
    shape.
    """
    sizes = {name: _largest(wanted) for name, wanted in expected.items()}
    floors = {
        kind: floor * max((size for name, size in sizes.items() if name.startswith(kind)), default=0.0)
        for kind, floor in FLOORS.items()
    }
    for name, wanted in expected.items():
        value = found.get(name)
        if value is None or value.shape != wanted.shape:
            yield Difference(name, math.inf)
            continue
        scale = max(sizes[name], *(floor for kind, floor in floors.items() if name.startswith(kind)), 1e-300)
        yield Difference(name, _largest(value - wanted) / scale)


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def _task(run: Run, folder: Path) -> tasks.Task:
    task = tasks.task_for(run, folder, torch.device("cpu"))
    task.pretend(arrays(run))
    return task


def _noisy(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for name, value in weights:
        if not value.is_floating_point():
            yield name, value
            continue
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        generator = torch.Generator().manual_seed(seed)
        yield name, value + NOISE * torch.randn(value.shape, generator=generator, dtype=value.dtype)
