"""Summarization of documents: cross-entropy over the summary's real tokens, ROUGE-L of greedy decoding."""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from shardlab.data.order import Indices
from shardlab.files import read_json
from shardlab.models._losses import IGNORE
from shardlab.runtime import tasks
from shardlab.runtime.tasks import Batch, Inputs, token_loss


class Task(tasks.Task):
    """Summarization of documents; cross-entropy over the summary's real tokens, ROUGE-L of greedy decoding."""

    metric_name = "rougeL"
    of_tokens = True
    sequences: ClassVar = {"document": 0, "inputs": 0, "targets": IGNORE}
    whole_sequences: ClassVar = {"mask": False}

    def samples(self, split: str) -> int:
        return len(self.arrays(split)["summary_offsets"]) - 1

    @cached_property
    def special_tokens(self) -> dict[str, int]:  # type: ignore[override]
        """Ids of ``pad``, ``start`` and ``end``, as the data set was tokenized."""
        manifest = read_json(self.folder / "dataset.json", "data set", "prepare it")
        return dict(manifest["special_tokens"])

    def _rows(self, split: str, name: str, indices: Indices) -> list[Tensor]:
        arrays = self.arrays(split)
        flat, offsets = arrays[name], arrays[f"{name}_offsets"]
        return [torch.from_numpy(flat[offsets[i] : offsets[i + 1]].astype(np.int64)) for i in indices]

    def targets(self, split: str, indices: Indices) -> int:
        offsets = self.arrays(split)["summary_offsets"]
        # A row is start ... end: all tokens but the first are predicted.
        return int((offsets[indices + 1] - offsets[indices] - 1).sum())

    def batch(self, split: str, indices: Indices) -> Batch:
        documents = self._rows(split, "document", indices)
        summaries = self._rows(split, "summary", indices)
        pad = self.special_tokens["pad"]
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
        """Return the length of a split's longest row, which takes a pass over all of its offsets once."""
        if (split, name) not in self._lengths:
            self._lengths[split, name] = int(np.diff(self.arrays(split)[f"{name}_offsets"]).max())
        return self._lengths[split, name]

    @cached_property
    def _lengths(self) -> dict[tuple[str, str], int]:
        return {}

    def inputs(self, batch: Batch) -> Inputs:
        return (batch["document"], batch["inputs"]), {"mask": batch["mask"]} | self.chunks(batch["targets"])

    def targets_in(self, batch: Batch) -> Tensor:
        return (batch["targets"] != IGNORE).sum()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return token_loss(outputs, batch["targets"], self.smoothing)

    @cached_property
    def _rouge(self) -> tuple[Any, Any]:
        # Only evaluate needs them, and importing them takes a second.
        from rouge_score.rouge_scorer import RougeScorer
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json")), RougeScorer(["rougeL"])

    def score(self, model: nn.Module, outputs: Tensor, batch: Batch) -> float:
        tokenizer, scorer = self._rouge
        # The longest summary of the train split: the reference's own length would leak information.
        decoded = self._greedy(model, batch, length=self._longest("train", "summary") - 1)
        total, end = 0.0, self.special_tokens["end"]
        for row, target in zip(decoded.tolist(), batch["targets"].tolist(), strict=True):
            guess = tokenizer.decode(row[: row.index(end)] if end in row else row)
            truth = tokenizer.decode([token for token in target if token not in (IGNORE, end)])
            total += scorer.score(truth, guess)["rougeL"].fmeasure
        return total

    def _greedy(self, model: nn.Module, batch: Batch, length: int) -> Tensor:
        """Decode greedily, up to ``length`` steps or until every row has ended: (batch, steps)."""
        summary = torch.full((len(batch["document"]), 1), self.special_tokens["start"], device=batch["document"].device)
        for _ in range(length):
            logits = model(batch["document"], summary, mask=batch["mask"])
            summary = torch.cat((summary, logits[:, -1:].argmax(-1)), dim=1)
            if bool((summary[:, 1:] == self.special_tokens["end"]).any(dim=1).all()):
                break
        return summary[:, 1:]
