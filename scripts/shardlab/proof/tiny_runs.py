"""The run of a strategy that is proven: a tiny model's, on forked ranks of this machine."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardlab.data import encoders
from shardlab.data.encoders import Arrays
from shardlab.models._library_chain import CHANNELS
from shardlab.models._losses import IGNORE
from shardlab.runtime import tasks
from shardlab.schema import check
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.types import DataSource, Run, Size, Strategy, Workload

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
    "cpu_binding": None,
}
NAME = "model"
"""Name of the workload, which is in no file."""
TEXT = {"sequence_length": LENGTH}
DATA: dict[str, dict[str, Any]] = {"summarization": {"document_tokens": LENGTH, "summary_tokens": LENGTH // 2}}
"""Task: options of its data, if they are not those of ``TEXT``."""


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
    shape = {"channels": own.get("num_channels", CHANNELS), "image_size": size}
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
