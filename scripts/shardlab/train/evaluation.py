"""Loss and metric of weights over a whole split, each sample once: on one device, or divided among a run's ranks."""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from shardlab import models, parallel
from shardlab.data import order
from shardlab.errors import UserError
from shardlab.models._experts import Router
from shardlab.models.weights import materialize
from shardlab.records import expert_choices
from shardlab.records.done import AVERAGED
from shardlab.records.reports import Evaluated
from shardlab.runtime import distributed, tasks
from shardlab.runtime.batches import micro_batches
from shardlab.runtime.device import device_for_rank
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.tasks import Batch, Task
from shardlab.settings.types import Run


@torch.no_grad()
def mean_loss(task: Task, engine: Engine, split: str, batch_size: int, world: World) -> float:
    """Return the loss per target over a whole split, each sample once, divided among the data-parallel ranks."""
    engine.train(False)
    batches = order.in_order(task.samples(split), batch_size)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for batch in batches:
        for micro in micro_batches(task, engine, split, batch, batch_size, 1, world):
            total += engine.loss(micro)
    engine.train(True)
    return float(world.sum(total)) / sum(task.targets(split, batch) for batch in batches)


def evaluate(run: Run, data: Path, weights: Path) -> Evaluated:
    """Return the test loss per target, and the metric, as the run says; a collective if that is sharded."""
    return (evaluate_sharded if run.evaluated_sharded else evaluate_whole)(run, data, weights)


def evaluate_average(run: Run, data: Path, weights: Path) -> Evaluated | None:
    """Return the same of the averages of the weights, which are next to them; None without recipe.ema_decay."""
    if run.recipe.ema_decay is None:
        return None
    gc.collect()  # the engine of a sharded evaluation, whose parts point to each other
    return evaluate(run, data, weights.with_name(AVERAGED))


def _whole(run: Run, data: Path, weights: Path) -> tuple[Task, nn.Module]:
    """Return the task, and the model with these weights on one device."""
    device = device_for_rank(run.site.device)
    dtype = getattr(torch, run.recipe.dtype)
    task = tasks.load(run.task, data, dtype, device, loss_chunks=run.recipe.loss_chunks)
    model = models.build(run.model, run.task, dtype)
    materialize(model, weights, device)
    return task, model


@torch.no_grad()
def loss_of(run: Run, data: Path, weights: Path, split: str) -> float:
    """Return the loss per target of ``weights`` over a whole split, on one device.

    Raises:
        NotFinite: it is not finite.
    """
    task, model = _whole(run, data, weights)
    total = sum(float(task.loss(outputs, batch)) for outputs, batch in _outputs(run, task, model, split))
    loss = total / _targets(task, split)
    check_finite(run, split, loss)
    return loss


def _targets(task: Task, split: str) -> int:
    """Return the number of targets of a whole split."""
    return task.targets(split, np.arange(task.samples(split)))


def _outputs(run: Run, task: Task, model: nn.Module, split: str) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the outputs of a model in evaluation mode, and the batch, over a whole split."""
    model.eval()
    for indices in order.in_order(task.samples(split), run.recipe.eval_batch_size):
        batch = task.batch(split, indices)
        yield cast(Tensor, task.outputs(model, batch)), batch


@torch.no_grad()
def evaluate_whole(run: Run, data: Path, weights: Path) -> Evaluated:
    """Return loss per target and metric of ``weights`` over the whole test split, unpadded, on one device."""
    task, model = _whole(run, data, weights)
    return evaluate_model(run, task, model)


@torch.no_grad()
def evaluate_model(run: Run, task: Task, model: nn.Module) -> Evaluated:
    """Return loss per target and metric of a model that has its weights over the whole test split, unpadded."""
    loss = score = 0.0
    with _record_choices(model) as chosen:
        for outputs, batch in _outputs(run, task, model, "test"):
            loss += float(task.loss(outputs, batch))
            score += task.score(model, outputs, batch)
    evaluated = _report(run, task, loss / _targets(task, "test"), score)
    if chosen:
        choices = np.stack([torch.cat(layer).cpu().numpy() for layer in chosen])
        evaluated = evaluated.model_copy(update={"expert_choices": expert_choices.encode(choices)})
    return evaluated


@contextmanager
def _record_choices(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Yield a list that has, for each router, the experts chosen in each call: (tokens, top_k)."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    chosen: list[list[Tensor]] = [[] for _ in routers]

    def record(layer: list[Tensor], routing: Any) -> None:
        if sum(map(len, layer)) < expert_choices.MOST:
            layer.append(routing.ids.flatten(0, 1))

    hooks = [
        router.register_forward_hook(lambda _, __, routing, layer=layer: record(layer, routing))
        for router, layer in zip(routers, chosen, strict=True)
    ]
    yield chosen
    for hook in hooks:
        hook.remove()


def evaluate_sharded(run: Run, data: Path, weights: Path) -> Evaluated:
    """Return the test loss per target under the run's own strategy; a collective, the same on every rank."""
    world = distributed.world(run)
    task = tasks.task_for(run, data, world.device)
    engine = parallel.build(run, task, world, weights)
    distributed.limit_groups(run.site.hang_seconds)
    return evaluate_engine(run, engine, task, world)


def evaluate_engine(run: Run, engine: Engine, task: Task, world: World) -> Evaluated:
    """Return the loss per target of an engine's weights over the test split; a collective, the same on every rank."""
    return _report(run, task, mean_loss(task, engine, "test", run.recipe.eval_batch_size, world), None)


class NotFinite(UserError):
    """The loss of weights is not a finite number."""


def check_finite(run: Run, split: str, loss: float) -> None:
    """Check the loss of a split.

    Raises:
        NotFinite: it is not finite.
    """
    if not math.isfinite(loss):
        raise NotFinite(
            f"{run.workload}: the {split} loss of these weights is {loss} in {run.recipe.dtype}; choose another "
            "recipe.dtype, or look for what is not finite in the data and in the model's outputs."
        )


def _report(run: Run, task: Task, loss: float, score: float | None) -> Evaluated:
    """Return the report of a test loss.

    Raises:
        NotFinite: it is not finite.
    """
    check_finite(run, "test", loss)
    samples = task.samples("test")
    known = score is not None or not task.scores
    metric = task.metric(loss, score or 0.0, samples) if known else None
    return Evaluated(
        workload=run.workload,
        loss=loss,
        evaluation="sharded" if score is None else "whole",
        metric_name=task.metric_name,
        metric_value=metric if metric is not None and math.isfinite(metric) else None,
        samples=samples,
        targets=_targets(task, "test"),
    )
