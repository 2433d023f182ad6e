"""The run of a strategy that is proven: a tiny model's, on forked ranks of this machine."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardlab.data.encoders import Arrays
from shardlab.schema import check
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.types import DataSource, Run, Size, Strategy, Workload

VOCABULARY, SAMPLES, LENGTH = 128, 4, 16
"""Tokens that a tiny model knows, samples of the step, and tokens of each."""
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


class Written(NamedTuple):
    """What a workload's file says of a transformers model, besides what the library declares."""

    blocks: list[str]
    tensor: dict[str, str]
    task: str = "language_modelling"


NOTHING = Written([], {})


def tiny_run(folder: Path, strategy_name: str, strategy: Strategy | None = None, written: Written = NOTHING) -> Run:
    """Return the run that trains the tiny model in ``folder`` for a step, on as few ranks as the strategy needs.

    Raises:
        Unsupported: the strategy does not apply.
        UserError: settings do not fit together.
    """
    config = check(Config, {"site": "local", "site_settings": SITE, "container": False, "recipe": RECIPE}, "config")
    workload = Workload(
        model=f"hf:{folder}",
        task=written.task,
        blocks=written.blocks,
        tensor=written.tensor,
        data={"embedded": DataSource(name=NAME, reader="package_source")},
        sizes={"small": Size(model={"pretrained": False}, data={"sequence_length": LENGTH})},
    )
    return resolve.run(config, strategy_name, NAME, strategy=strategy, workload=workload)


def arrays(*, packed: bool = False) -> Arrays:
    """Return the prepared data: tokens (samples, length + 1); ``packed``: rows of several documents, of which every
    second token is a target.
    """
    tokens = np.random.default_rng(1).integers(LOWEST, VOCABULARY, (SAMPLES, LENGTH + 1)).astype(np.int32)
    if not packed:
        return {"tokens": tokens}
    lengths = ([7, 9], [LENGTH], [3, 5, 8], [10, *[1] * (LENGTH - 10)])
    positions = np.stack([np.concatenate([np.arange(length) for length in row]) for row in lengths])
    targets = np.where(positions % 2, tokens[:, 1:], -100)
    return {"inputs": tokens[:, :-1], "targets": targets.astype(np.int32), "positions": positions.astype(np.int32)}
