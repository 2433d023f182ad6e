"""DeepSpeed's settings: the user's JSON, with what the recipe decides filled in."""

import json
from typing import Any

from shardlab.errors import UserError, choices
from shardlab.files import ROOT
from shardlab.settings import load
from shardlab.settings.recipe import Recipe
from shardlab.settings.types import Strategy

LARGEST = {
    "reduce_bucket_size": 50_000_000,
    "allgather_bucket_size": 50_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
}
"""Sizes of zero_optimization, in values, that may be "auto", and their maximum in that case."""
PART = 16
"""An "auto" size is the model's size divided by this: small compared with the model, and few collectives."""


def sized(config: dict[str, Any], parameters: int) -> dict[str, Any]:
    """Return DeepSpeed's settings with each "auto" size replaced by a number, for a model of ``parameters`` values."""
    zero = dict(config.get("zero_optimization", {}))
    for key, largest in LARGEST.items():
        if zero.get(key) == "auto":
            zero[key] = min(largest, 2 * -(-parameters // (2 * PART)))  # DeepSpeed needs an even number
    return config | {"zero_optimization": zero}


def settings(strategy: Strategy, name: str, recipe: Recipe, replicas: int) -> dict[str, Any] | None:
    """Return the DeepSpeed settings of a run, or None if its strategy uses another engine.

    Raises:
        UserError: the file is missing, is not JSON, or sets what the recipe decides.
    """
    if strategy.config is None:
        return None
    path = ROOT / strategy.config
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        known = choices(str(p.relative_to(ROOT)) for p in (load.CONFIG / "deepspeed").glob("*.json"))
        raise UserError(f"config/strategies.yaml: {name}: {strategy.config} does not exist; known: {known}.") from None
    except ValueError as error:
        raise UserError(f"{strategy.config} is not strict JSON ({error}); no comments, no trailing commas.") from None
    decided: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": -(
            -recipe.global_batch_size // (replicas * recipe.gradient_accumulation_steps)
        ),
        "gradient_accumulation_steps": recipe.gradient_accumulation_steps,
        "gradient_clipping": recipe.max_grad_norm or 0.0,
    }
    if recipe.precision != "full":
        decided[recipe.precision] = {"enabled": True}
    clash = [key for key in (*decided, "train_batch_size", "optimizer", "scheduler") if key in given]
    if clash:
        raise UserError(f"{strategy.config}: `{clash[0]}` comes from the workload's recipe; remove it there.")
    # Its engine takes the recipe's optimizer, which it may not know by name, and prints nothing of its own.
    return {"zero_allow_untested_optimizer": True, "steps_per_print": 10**9, **given, **decided}
