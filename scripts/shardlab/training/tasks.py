"""Tasks: batches from the prepared arrays, the loss as a sum over targets, the metric people read."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from shardlab.data.order import Indices
from shardlab.errors import UserError
from shardlab.files import read_json

IGNORE = -100
"""Label of positions that are no target (PyTorch's own default)."""
Batch = dict[str, Tensor]
Inputs = tuple[tuple[Tensor, ...], Batch]
"""The model's positional and keyword arguments."""


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward pass. The first ``count`` of ``rows`` count, the others only fill it up."""

    batch: Batch
    count: int
    rows: int


class Task(ABC):
    """Base of all tasks. Losses are sums: only the caller knows the global count of targets."""

    metric_name = ""
    scores = True
    """Whether the metric needs ``score``, and not the loss alone."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, *, fixed_shapes: bool = False) -> None:
        """``fixed_shapes``: pad all batches of a split to the same lengths."""
        self.folder, self.dtype, self.device, self.fixed_shapes = folder, dtype, device, fixed_shapes
        self._splits: dict[str, dict[str, Tensor]] = {}

    def arrays(self, split: str) -> dict[str, Tensor]:
        """The prepared arrays of a split, loaded once."""
        if split not in self._splits:
            self._splits[split] = load_file(self.folder / f"{split}.safetensors")
        return self._splits[split]

    def samples(self, split: str) -> int:
        """Number of samples in a split."""
        return len(next(iter(self.arrays(split).values())))

    @abstractmethod
    def targets(self, split: str, indices: Indices) -> int:
        """Number of targets, the loss's divisor, of these samples; needs no batch."""

    @abstractmethod
    def batch(self, split: str, indices: Indices) -> Batch:
        """These samples as tensors on the device."""

    @abstractmethod
    def inputs(self, batch: Batch) -> Inputs:
        """What the model is called with."""

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Loss summed over the targets: a scalar."""

    def micro_batch(self, split: str, indices: Indices, rows: int | None = None) -> MicroBatch:
        """These samples, filled up to ``rows`` with samples that do not count.

        There is at least one sample: a rank with nothing to do still has to call the model, since the others wait
        for it in the collectives.
        """
        count = len(indices)
        filled = np.resize(indices if count else np.zeros(1, dtype=np.int64), rows or max(count, 1))
        return MicroBatch(self.batch(split, filled), count, len(filled))

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """What the model says of a batch."""
        positional, keywords = self.inputs(batch)
        outputs: Tensor = model(*positional, **keywords)
        return outputs

    def counted_loss(self, outputs: Tensor, micro: MicroBatch) -> Tensor:
        """Loss summed over the targets of the samples that count: a scalar, 0 with a gradient of 0 if none does."""
        counted = {name: rows[: micro.count] for name, rows in micro.batch.items()}
        return self.loss(outputs[: micro.count].to(self.dtype), counted)

    def score(self, model: nn.Module, outputs: Tensor, batch: Batch) -> float:
        """The batch's part of the metric, summed over its samples."""
        return 0.0

    def metric(self, loss: float, score: float, samples: int) -> float:
        """The metric from the mean loss, the summed score and the number of samples."""
        return score / samples

    def to_device(self, tensor: Tensor) -> Tensor:
        """Onto the device; floats in the run's dtype."""
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)


class Regression(Task):
    """Vectors to vectors; mean squared error over all elements."""

    metric_name = "mse"
    scores = False

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices) * self.arrays(split)["y"].shape[1]

    def batch(self, split: str, indices: Indices) -> Batch:
        return {name: self.to_device(array[indices]) for name, array in self.arrays(split).items()}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["x"],), {}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(outputs, batch["y"], reduction="sum")

    def metric(self, loss: float, score: float, samples: int) -> float:
        return loss


class Classification(Task):
    """Images to classes; cross-entropy, accuracy."""

    metric_name = "accuracy"

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices)

    def batch(self, split: str, indices: Indices) -> Batch:
        arrays = self.arrays(split)
        # Bytes to about [-1, 1]: one fixed scale, so no statistic of the data set is needed.
        images = arrays["images"][indices].to(self.dtype) / 127.5 - 1
        return {"images": self.to_device(images), "labels": self.to_device(arrays["labels"][indices])}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["images"],), {}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch["labels"], reduction="sum")

    def score(self, model: nn.Module, outputs: Tensor, batch: Batch) -> float:
        return float((outputs.argmax(-1) == batch["labels"]).sum())


class LanguageModelling(Task):
    """Next token of a text; cross-entropy, perplexity."""

    metric_name = "perplexity"
    scores = False

    def targets(self, split: str, indices: Indices) -> int:
        return len(indices) * (self.arrays(split)["tokens"].shape[1] - 1)

    def batch(self, split: str, indices: Indices) -> Batch:
        return {"tokens": self.to_device(self.arrays(split)["tokens"][indices].long())}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["tokens"][:, :-1],), {}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch["tokens"][:, 1:].flatten(), reduction="sum")

    def metric(self, loss: float, score: float, samples: int) -> float:
        return math.exp(min(loss, 700.0))


class Summarization(Task):
    """Document to summary; cross-entropy over the summary's real tokens, ROUGE-L of greedy decoding."""

    metric_name = "rougeL"

    def samples(self, split: str) -> int:
        return len(self.arrays(split)["summary_offsets"]) - 1

    @cached_property
    def _special(self) -> dict[str, int]:
        """Ids of the tokens ``pad``, ``start`` and ``end``."""
        manifest = read_json(self.folder / "dataset.json", "data set", "prepare it")
        return dict(manifest["special_tokens"])

    def _rows(self, split: str, name: str, indices: Indices) -> list[Tensor]:
        arrays = self.arrays(split)
        flat, offsets = arrays[name], arrays[f"{name}_offsets"]
        return [flat[offsets[i] : offsets[i + 1]].long() for i in indices]

    def targets(self, split: str, indices: Indices) -> int:
        offsets = self.arrays(split)["summary_offsets"]
        # A row is start ... end: all but the first token are predicted.
        return int((offsets[indices + 1] - offsets[indices] - 1).sum())

    def batch(self, split: str, indices: Indices) -> Batch:
        documents = self._rows(split, "document", indices)
        summaries = self._rows(split, "summary", indices)
        pad = self._special["pad"]
        batch = {
            "document": pad_sequence(documents, batch_first=True, padding_value=pad),
            "mask": pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in documents], batch_first=True),
            "inputs": pad_sequence([row[:-1] for row in summaries], batch_first=True, padding_value=pad),
            "targets": pad_sequence([row[1:] for row in summaries], batch_first=True, padding_value=IGNORE),
        }
        if self.fixed_shapes:
            document, summary = (self._longest(split, name) for name in ("document", "summary"))
            lengths = {"document": document, "mask": document, "inputs": summary - 1, "targets": summary - 1}
            fill = {"document": pad, "mask": 0, "inputs": pad, "targets": IGNORE}
            batch = {
                name: F.pad(rows, (0, lengths[name] - rows.shape[1]), value=fill[name]) for name, rows in batch.items()
            }
        return {name: self.to_device(tensor) for name, tensor in batch.items()}

    def _longest(self, split: str, name: str) -> int:
        return int(self.arrays(split)[f"{name}_offsets"].diff().max())

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["document"], batch["inputs"]), {"mask": batch["mask"]}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORE, reduction="sum")

    @cached_property
    def _rouge(self) -> tuple[Any, Any]:
        # Only evaluate needs them, and they take a second to import.
        from rouge_score.rouge_scorer import RougeScorer
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json")), RougeScorer(["rougeL"])

    def score(self, model: nn.Module, outputs: Tensor, batch: Batch) -> float:
        tokenizer, scorer = self._rouge
        # The longest summary of the train split: the reference's own length would be a hint.
        decoded = self._greedy(model, batch, length=self._longest("train", "summary") - 1)
        total, end = 0.0, self._special["end"]
        for row, target in zip(decoded.tolist(), batch["targets"].tolist(), strict=True):
            guess = tokenizer.decode(row[: row.index(end)] if end in row else row)
            truth = tokenizer.decode([token for token in target if token not in (IGNORE, end)])
            total += scorer.score(truth, guess)["rougeL"].fmeasure
        return total

    def _greedy(self, model: nn.Module, batch: Batch, length: int) -> Tensor:
        """The most likely next token, up to ``length`` times or until every row has ended: (batch, steps)."""
        summary = torch.full((len(batch["document"]), 1), self._special["start"], device=batch["document"].device)
        for _ in range(length):
            logits = model(batch["document"], summary, mask=batch["mask"])
            summary = torch.cat((summary, logits[:, -1:].argmax(-1)), dim=1)
            if bool((summary[:, 1:] == self._special["end"]).any(dim=1).all()):
                break
        return summary[:, 1:]


TASKS: dict[str, type[Task]] = {
    "regression": Regression,
    "classification": Classification,
    "language_modelling": LanguageModelling,
    "summarization": Summarization,
}


def load(name: str, folder: Path, dtype: torch.dtype, device: torch.device, *, fixed_shapes: bool = False) -> Task:
    """The task of that name over a prepared data set.

    Raises:
        UserError: there is no such task.
    """
    if name not in TASKS:
        raise UserError(f"there is no task {name}; known: {', '.join(TASKS)}.")
    return TASKS[name](folder, dtype, device, fixed_shapes=fixed_shapes)
