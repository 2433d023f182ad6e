"""Tasks, one per file with a class ``Task``: batches from the prepared arrays, the loss as a sum over targets, the
reported metric.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from shardlab.data.encoders import Arrays
from shardlab.data.order import Indices
from shardlab.data.split_file import open_arrays, release
from shardlab.data.text import SPECIAL
from shardlab.errors import UserError
from shardlab.models._chain import Chain
from shardlab.models._losses import IGNORE, SMOOTHING, TARGETS, cross_entropy
from shardlab.models._sequence import POSITIONS, SequenceSplit
from shardlab.models.declared import arguments
from shardlab.settings import registry
from shardlab.settings.types import Run

WHOLE = SequenceSplit()
Batch = dict[str, Tensor]
Inputs = tuple[tuple[Tensor, ...], dict[str, Any]]
"""The model's positional arguments, and its keyword arguments: tensors with the batch in dimension 0, or numbers."""
Outputs = Tensor | tuple[Tensor, ...]
"""Logits or losses; in training a mixture of experts adds its load and, if it has one, its auxiliary loss (see
models/moe.py).
"""


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward pass. The first ``count`` of ``rows`` count, the others are padding."""

    batch: Batch
    count: int
    rows: int

    @property
    def counted(self) -> Batch:
        if self.count == self.rows:
            return self.batch
        return {name: rows[: self.count] for name, rows in self.batch.items()}


class Task(ABC):
    """Base of all tasks. Losses are sums: only the caller knows the global number of targets."""

    metric_name = ""
    of_tokens = False
    """True if the loss is over tokens, so that a model can return it instead of logits (see ``token_loss``)."""
    packed = False
    """True if a row has several documents, so that the model must take their ``positions``."""
    sequences: ClassVar[dict[str, int]] = {}
    """Tensors of a batch (batch, length) that context parallelism splits, and the value of what fills up their length:
    tokens that no real token attends to, targets that do not count. Empty: not supported.
    """
    whole_sequences: ClassVar[dict[str, int]] = {}
    """The same of those that are filled up, but not split: what a rank needs to know of all ranks' keys (which
    count, which document each is of).
    """
    at_first_position: ClassVar[dict[str, int]] = {}
    """Tensors of a batch (batch,) that belong to the first position of a sequence that the model makes of a sample (a
    class token's target), and their value on ranks with other positions: targets that do not count.
    """
    scores = True
    """True if the metric needs ``score``, and not only the loss."""

    special_tokens: dict[str, int]
    """Ids of the tokens ``pad``, ``start`` and ``end``, for tasks on text."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fixed_shapes: bool = False,
        loss_chunks: int = 1,
        label_smoothing: float = 0.0,
    ) -> None:
        """``folder`` has the prepared data; ``fixed_shapes``: pad all batches of a split to the same lengths;
        ``loss_chunks``, ``label_smoothing``: see Recipe.
        """
        self.folder, self.dtype, self.device, self.fixed_shapes = folder, dtype, device, fixed_shapes
        self.loss_chunks, self.label_smoothing = loss_chunks, label_smoothing
        self.training = True
        """False in evaluation, whose losses are without label smoothing."""
        self._splits: dict[str, Arrays] = {}
        self.trained_samples = 0
        """Number of samples for which this rank computed a training loss from its model's outputs."""
        self.trained_targets: Tensor | int = 0
        """Number of targets in these samples."""
        self._load: Tensor | int = 0
        self._dispatched: Tensor | int = 0

    def arrays(self, split: str) -> Arrays:
        """Return the prepared arrays of a split, memory-mapped: only indexed rows are read from the file, and, of a
        large one, held until the next call.
        """
        if split not in self._splits:
            self._splits[split] = open_arrays(self.folder / f"{split}.safetensors")
        release(self._splits[split])
        return self._splits[split]

    def pretend(self, arrays: Arrays) -> None:
        """Use these arrays as the training split, without prepared data."""
        self._splits["train"] = arrays
        self.special_tokens = SPECIAL

    def samples(self, split: str) -> int:
        return len(next(iter(self.arrays(split).values())))

    @abstractmethod
    def targets(self, split: str, indices: Indices) -> int:
        """Return the number of targets (the loss's divisor) in these samples, without making a batch."""

    @abstractmethod
    def batch(self, split: str, indices: Indices) -> Batch:
        """Return these samples as tensors on the device."""

    @abstractmethod
    def inputs(self, batch: Batch) -> Inputs:
        """Return the model's arguments."""

    @abstractmethod
    def targets_in(self, batch: Batch) -> Tensor | int:
        """Return the number of targets in a batch, counted in its tensors."""

    @property
    def smoothing(self) -> float:
        """Return the label smoothing of losses at the moment."""
        return self.label_smoothing if self.training else 0.0

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss summed over the targets, a scalar. Outputs can be losses per sample (see ``token_loss``)."""

    def micro_batch(
        self, split: str, indices: Indices, rows: int | None = None, sequence: SequenceSplit = WHOLE
    ) -> MicroBatch:
        """Return these samples, or a part of each one's sequence, padded to ``rows`` with samples that do not count.

        There is always at least one sample: a rank without work still has to call the model, since the others wait for
        it in the collectives.
        """
        count = len(indices)
        filled = np.resize(indices if count else np.zeros(1, dtype=np.int64), rows or max(count, 1))
        return MicroBatch(self._part(self.batch(split, filled), sequence), count, len(filled))

    def _part(self, batch: Batch, sequence: SequenceSplit) -> Batch:
        """Return a part of each sequence, whose length is first filled up to a multiple of the number of pieces."""
        part = dict(batch)
        for name, fill in (self.sequences | self.whole_sequences).items() if sequence.ranks > 1 else ():
            part[name] = F.pad(batch[name], (0, -batch[name].shape[1] % sequence.count), value=fill)
            if name in self.sequences:
                part[name] = sequence.part(part[name], 1)
        for name, fill in self.at_first_position.items() if sequence.rank > 0 else ():
            part[name] = torch.full_like(batch[name], fill)
        return part

    def outputs(self, model: nn.Module, batch: Batch) -> Outputs:
        positional, keywords = self.inputs(batch)
        outputs: Outputs = model(*positional, **keywords)
        return outputs

    def counted_loss(self, outputs: Outputs, micro: MicroBatch) -> Tensor:
        """Return the loss summed over the targets of the samples that count: a scalar, 0 with a gradient of 0 if none
        does.
        """
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if micro.count < micro.rows:  # without this, slicing costs a copy in the backward pass
            outputs = tuple(value[: micro.count] for value in outputs)
        loss = self.loss(outputs[0].to(self.dtype), micro.counted)
        if len(outputs) < 3:
            return loss
        whole: Tensor = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        auxiliary = outputs[2].to(self.dtype)
        # The gradient of a plain sum has strides of 0, which a pipeline cannot receive.
        return whole + auxiliary.dot(torch.ones_like(auxiliary))

    def count(self, outputs: Outputs, micro: MicroBatch) -> None:
        """Count the samples and targets that this rank trains on, and its experts' tokens, from its model's outputs."""
        first, *more = outputs if isinstance(outputs, tuple) else (outputs,)
        self.trained_samples += min(len(first), micro.count)
        self.trained_targets = self.trained_targets + self.targets_in(micro.counted)
        if more:
            self._load = self._load + more[0][: micro.count, :, :-1].sum(0)
            self._dispatched = self._dispatched + more[0].sum(0)

    def counted_load(self, shape: tuple[int, int] | None) -> Tensor | None:
        """Return the tokens per layer and expert since the last call, of this shape, and in one more column the rows
        per layer that this rank sent to experts less those that its experts computed: dropped ones, if summed over all
        ranks. None without a shape.
        """
        if shape is None:
            return None
        load, rows = self._load, self._dispatched
        self._load = self._dispatched = 0
        if not isinstance(load, Tensor) or not isinstance(rows, Tensor):
            return torch.zeros(shape[0], shape[1] + 1, dtype=torch.int64, device=self.device)
        sent, computed = rows.split([shape[1], 1], dim=1)
        return torch.cat([load, sent.sum(1, keepdim=True) - computed], dim=1)

    def chunks(self, targets: Tensor) -> dict[str, Any]:
        """Return the keyword arguments that make a model return losses, not logits: ``targets`` (batch, length) in
        chunks.
        """
        if self.loss_chunks == 1:
            return {}
        positions = -(-targets.shape[1] // self.loss_chunks)
        filled = F.pad(targets, (0, -targets.shape[1] % positions), value=IGNORE)
        return {TARGETS: filled.unflatten(1, (-1, positions))} | ({SMOOTHING: self.smoothing} if self.smoothing else {})

    def score(self, model: nn.Module, outputs: Tensor, batch: Batch) -> float:
        """Return the batch's contribution to the metric, summed over its samples."""
        return 0.0

    def metric(self, loss: float, score: float, samples: int) -> float:
        """Compute the metric from the mean loss, the summed score and the number of samples."""
        return score / samples

    def to_device(self, values: NDArray[Any] | Tensor) -> Tensor:
        """Copy to the device; floats in the run's dtype."""
        tensor = torch.as_tensor(values)
        tensor = tensor.to(self.dtype if tensor.is_floating_point() else None)
        if self.device.type != "cpu":
            tensor = tensor.pin_memory()  # the copy is then asynchronous
        return tensor.to(self.device, non_blocking=True)


def check_model(run: Run, model: nn.Module) -> None:
    """Check that the model can return losses if the recipe needs them, and tell documents apart if the task packs them.

    Raises:
        UserError: it cannot.
    """
    task, recipe = _class(run.task), run.recipe
    takes = {name for segment in (model.segments() if isinstance(model, Chain) else []) for name in segment.takes}
    positions, others = (POSITIONS, takes) if not run.model.folder else ("position_ids", takes | {*arguments(model)})
    chunked = task.of_tokens and recipe.loss_chunks > 1
    for needed, word, what, remedy in (
        (task.packed, positions, f"task {run.task} puts several documents into a row", "use task language_modelling"),
        (chunked, TARGETS, "recipe.loss_chunks makes a model return losses", "set it to 1"),
        (chunked and recipe.label_smoothing, SMOOTHING, "recipe.label_smoothing is for logits", "set loss_chunks to 1"),
    ):
        if needed and word not in others:
            instead = "" if run.model.folder else f", or make the pieces of its chain take `{word}`, as llama's do"
            raise UserError(f"{what}, and model {run.model.name} takes no {word}; {remedy}{instead}.")


def token_loss(outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return summed cross-entropy of logits (batch, length, vocabulary) on tokens (batch, length), or the sum of losses
    (batch,).
    """
    if outputs.dim() == 1:
        return outputs.sum()
    rounds = outputs.dtype == torch.bfloat16  # a sum in it has three digits, and float32 logits take twice the memory
    reduction = "none" if rounds else "sum"
    logits, targets = outputs.flatten(0, 1), targets.flatten()
    losses = cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction=reduction)
    return losses.float().sum() if rounds else losses


def upcast_for_sum(values: Tensor) -> Tensor:
    """Return the values in a type that is accurate enough for a sum: float32 or wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def task_for(run: Run, folder: Path, device: torch.device) -> Task:
    """Return a run's task over its prepared data set."""
    recipe = run.recipe
    options = {"loss_chunks": recipe.loss_chunks, "label_smoothing": recipe.label_smoothing}
    return load(run.task, folder, getattr(torch, recipe.dtype), device, fixed_shapes=run.mesh.pipelined, **options)


def load(name: str, folder: Path, dtype: torch.dtype, device: torch.device, **options: Any) -> Task:
    """Return the task ``name`` over a prepared data set; ``options``: see Task.

    Raises:
        UserError: no task has this name.
    """
    return _class(name)(folder, dtype, device, **options)


def is_packed(name: str) -> bool:
    """Return whether a row of the task ``name`` has several documents."""
    return _class(name).packed


def _class(name: str) -> type[Task]:
    registry.require("task", name)
    task_class: type[Task] = import_module(f"shardlab.runtime.tasks.{name}").Task
    return task_class
