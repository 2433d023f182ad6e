"""The run of a tiny model that is proven, and what a rank does of it: one step of an engine, or of the plain model, and
how much they differ.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shardlab import models, parallel
from shardlab.data import encoders
from shardlab.data.encoders import Arrays
from shardlab.errors import UserError
from shardlab.models import _transformers, declared
from shardlab.models._float64 import Float64
from shardlab.models._library_chain import CHANNELS, key_of_channels
from shardlab.models._losses import IGNORE
from shardlab.models._sequence import POSITIONS, documents_of
from shardlab.models.weights import materialize, save
from shardlab.runtime import distributed, optimizers, tasks, trial
from shardlab.runtime.batches import Steps
from shardlab.runtime.distributed import local
from shardlab.runtime.engine import Engine
from shardlab.schema import check
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.types import DataSource, Run, Size, Strategy, Workload
from shardlab.train.step import train_step

VOCABULARY, SAMPLES, LENGTH, PICTURE = 128, 4, 16, 16
"""Tokens that a tiny model knows, samples of the step, tokens of each, pixels of a picture's side."""
ANY_PICTURE = 2 * PICTURE
"""Pixels of a side where a model has no size of its own: convolutions that halve pictures five times leave one."""
LOWEST = 3
"""Smallest token of the data: smaller ones are padding or ends of texts for some models."""
RECIPE = {"dtype": "float64", "global_batch_size": SAMPLES, "max_steps": 1, "max_grad_norm": 0.01}
SITE: dict[str, Any] = {
    "device": "cpu",
    "nodes_max": None,
    "ranks_per_node_max": None,
    "environment": {},
}
NAME = "model"
"""Name of the workload, which is in no file."""
TEXT = {"sequence_length": LENGTH}
DATA: dict[str, dict[str, Any]] = {"summarization": {"document_tokens": LENGTH, "summary_tokens": LENGTH // 2}}
"""Task: options of its data, if they are not those of ``TEXT``."""
WEIGHTS, EXPECTED = "model.safetensors", "expected.safetensors"
"""Files of a tiny model's folder: its initial weights, what one process computes."""
LOSS, NORM, GRADIENT, UPDATED = "loss", "gradient norm", "gradient of ", "update of "
"""Names of what is compared, the last two with a parameter's name."""
NOISE = 0.1
"""Standard deviation of what is added to initial weights: norms of ones and biases of zeros would hide mistakes."""
OF_LOSS = re.compile(r".*(loss|coef).*")
"""Keys of config.json that may ask for another term of the loss."""
LOSS_TOLERANCE = 1e-6
"""Of the library's own loss, which may compute in float32."""
DOCUMENTS_TOLERANCE = 1e-9
"""Of the loss of packed rows, in float64."""
FLOORS = {GRADIENT: 1e-5, UPDATED: 1e-3}
"""A parameter's values are compared relative to their largest, or to this part of the model's largest: a bias in front
of a softmax has a gradient of nothing but rounding, and Adam's first update is a gradient by its size.
"""


class Written(NamedTuple):
    """What a workload's file says of a transformers model, besides what the library declares."""

    blocks: list[str]
    tensor: dict[str, str]
    task: str = "language_modelling"
    sync_batch_norm: bool = False
    layerdrop: tuple[str, ...] = ()
    """Keys of its configuration with the part of layers that is left out at random, which a tiny model has as 0."""


NOTHING = Written([], {})


def tiny_run(folder: Path, strategy_name: str, strategy: Strategy | None = None, written: Written = NOTHING) -> Run:
    """Return the run that trains the tiny model in ``folder`` for a step, on as few ranks as the strategy needs.

    Raises:
        Unsupported: the strategy does not apply.
        UserError: settings do not fit together.
    """
    recipe = RECIPE | {"sync_batch_norm": written.sync_batch_norm}
    config = check(Config, {"site": "local", "site_settings": SITE, "container": False, "recipe": recipe}, "config")
    size = Size(model={"pretrained": False}, data=DATA.get(written.task, TEXT))
    if written.task == "classification":
        pictures, classes = _of_pictures(folder)
        size = Size(model={"pretrained": False}, data=pictures, shape={"classes": classes})
    workload = Workload(
        model=f"hf:{folder}",
        task=written.task,
        blocks=written.blocks,
        tensor=written.tensor,
        data={"embedded": DataSource(name=NAME, reader="package_source")},
        sizes={"small": size},
    )
    return resolve.run(config, strategy_name, NAME, strategy=strategy, workload=workload)


def _of_pictures(folder: Path) -> tuple[dict[str, int], int]:
    """Return the shape of the pictures that the tiny model takes, and its number of classes."""
    config = json.loads((folder / "config.json").read_text())
    own = next((each for each in (config, config.get("vision_config", {})) if "image_size" in each), config)
    size = own.get("image_size", ANY_PICTURE)
    size = size[0] if isinstance(size, list) else size
    key = key_of_channels(own.__contains__)
    shape = {"channels": own[key] if key else CHANNELS, "image_size": size}
    return shape, len(config.get("id2label") or {}) or 2


def tokens() -> NDArray[np.int32]:
    """Return the tokens of a language model: (samples, length + 1)."""
    return np.random.default_rng(1).integers(LOWEST, VOCABULARY, (SAMPLES, LENGTH + 1)).astype(np.int32)


def arrays(run: Run) -> Arrays:
    """Return the prepared data of the run's task."""
    if run.task == "classification":
        return _pictures(run)
    if run.task == "summarization":
        return _pairs()
    return _packed() if tasks.is_packed(run.task) else {"tokens": tokens()}


def _pictures(run: Run) -> Arrays:
    random, blank = np.random.default_rng(1), encoders.blank(run.data, SAMPLES)["images"]
    labels = random.integers(0, run.data.options["classes"], SAMPLES)
    return {"images": random.integers(0, 256, blank.shape, blank.dtype), "labels": labels}


def _pairs() -> Arrays:
    """Of different lengths, so that there is padding."""
    found: Arrays = {}
    for name, lengths in (("document", [LENGTH, 3, 9, 12]), ("summary", [4, LENGTH // 2 + 1, 2, 6])):
        found[name] = np.concatenate([row[:length] for row, length in zip(tokens(), lengths, strict=True)])
        found[f"{name}_offsets"] = np.cumsum([0, *lengths])
    return found


def _packed() -> Arrays:
    """Rows of several documents, of which every second token is a target."""
    whole = tokens()
    lengths = ([7, 9], [LENGTH], [3, 5, 8], [10, *[1] * (LENGTH - 10)])
    positions = np.stack([np.concatenate([np.arange(length) for length in row]) for row in lengths])
    targets = np.where(positions % 2, whole[:, 1:], IGNORE)
    return {"inputs": whole[:, :-1], "targets": targets.astype(np.int32), "positions": positions.astype(np.int32)}


class Difference(NamedTuple):
    """How far a quantity is from that of one process, relative to its largest value."""

    name: str
    value: float


class OneProcess(NamedTuple):
    """What is known of a tiny model after a step of one process."""

    refusal: str
    """A sentence if no strategy trains it, and one device does not evaluate it, as the library would with another loss,
    or with one document in each row; else empty.
    """
    seen: dict[str, list[str]]
    """The properties that runtime/trial.py finds."""
    noise: float = 0.0
    """Largest relative difference of a gradient if the samples have another order."""


def one_process(run: Run, folder: Path) -> OneProcess:
    """Write a tiny model's weights, and what the plain model computes from them in one step, without any engine.

    Raises:
        UserError: the loss is not finite, as of masks that only float32 holds.
    """
    dtype = getattr(torch, run.recipe.dtype)
    model = models.build(run.model, run.task, dtype)
    weights = models.initial_weights(run.model, run.task, dtype, run.seed)
    save(_noisy(weights), models.state(model), folder / WEIGHTS)
    materialize(model, folder / WEIGHTS, torch.device("cpu"))
    model.train()
    task = _task(run, folder)
    micro = task.micro_batch("train", np.arange(run.recipe.global_batch_size))
    seen = trial.find_properties(run, task, model)
    if changing := seen.get("changing"):
        names = ", ".join([*dict.fromkeys(map(models.without_numbers, changing))][:3])
        return OneProcess(f"the model has values that a forward pass writes ({names}), which no strategy trains.", seen)
    refusal = ""
    if task.packed:
        total = _one_document_at_a_time(model, micro.batch)
        refusal = _of_documents(task, model, micro, total)
    else:
        total = task.counted_loss(task.outputs(model, micro.batch), micro)
    loss = total / task.targets_in(micro.batch)
    if not loss.isfinite():
        raise UserError(f"the loss of the library's tiny model is {float(loss)} in float64, in which proofs are made.")
    refusal = refusal or _other_loss(run.task, task, model, micro.batch)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = {name: value for name, value in models.state(model).items() if value.requires_grad}
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in parameters.items()}
    noise = 0.0 if task.packed else _noise(task, model, gradients)
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
    return OneProcess(refusal, seen, noise)


def _noise(task: tasks.Task, model: nn.Module, gradients: Mapping[str, Tensor]) -> float:
    """Return how far gradients are from those of the same samples in reversed order, which differ by rounding alone."""
    samples = task.samples("train")
    micro = task.micro_batch("train", np.arange(samples)[::-1])
    loss = task.counted_loss(task.outputs(model, micro.batch), micro) / task.targets_in(micro.batch)
    parameters = models.state(model)
    found = torch.autograd.grad(loss, [parameters[name] for name in gradients], allow_unused=True)
    reversed_ = {
        GRADIENT + name: torch.zeros_like(expected) if value is None else value
        for (name, expected), value in zip(gradients.items(), found, strict=True)
    }
    every = differences(reversed_, {GRADIENT + name: value for name, value in gradients.items()})
    return max(each.value for each in every)


def _other_loss(kind: str, task: tasks.Task, model: nn.Module, batch: tasks.Batch) -> str:
    """Return a sentence if the library's own loss is not the cross-entropy of its logits: that of a picture's label, of
    a position's own token, or of the next one.
    """
    if "labels" not in declared.arguments(model):
        return ""
    (first, *_), _ = task.inputs(batch)
    labels = batch["labels"] if kind == "classification" else first.contiguous()
    named = dict.fromkeys(_transformers.CLASSES[kind][1], first.contiguous())
    with Float64(), torch.no_grad():
        outputs = declared.own_forward(model)(model, **named, labels=labels, return_dict=True)
        logits = outputs.logits
        means = [F.cross_entropy(logits.flatten(0, -2), labels.flatten())]
        if labels.dim() > 1:
            means.append(F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))
    loss = outputs.loss.double()
    if any(torch.isclose(loss, each.double(), rtol=LOSS_TOLERANCE, atol=0.0) for each in means):
        return ""
    config: Any = model.config
    asking = [f"{key} {value}" for key, value in _transformers.floats(config.to_dict(), OF_LOSS) if value]
    perhaps = f", perhaps by {' or '.join(asking)}" * bool(asking)
    return (
        f"the library's own loss is {loss:.4f} at tiny sizes, where the cross-entropy is {means[-1]:.4f}: config.json "
        f"asks for another term{perhaps}, which no strategy trains; set its coefficient to 0 under `model:` of the "
        "workload's size."
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
    engine: Any = parallel.build(run, task, world, folder / WEIGHTS)
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
    held = sum(local(value).numel() for value in engine.parameters().values() if value.requires_grad)
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
