"""Weights on disk: safetensors under the plain model's names, whole or not there."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from shardlab.errors import UserError
from shardlab.files import write_atomic


def save(weights: dict[str, Tensor], path: Path) -> None:
    """Write whole CPU weights.

    Raises:
        UserError: the disk is full or not writable; nothing half-written is left.
    """
    write_atomic(path, lambda temporary: save_file(weights, temporary))


def load(model: nn.Module, path: Path) -> None:
    """Read weights into a plain model; its dtype wins.

    Raises:
        UserError: the file is missing, damaged or of another model.
    """
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the rule that makes it (snakemake {path}).") from None
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and run the rule that makes it.") from None
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in weights.items()}
    if own != theirs:
        name = min(own.items() ^ theirs.items())[0]
        raise UserError(
            f"{path} holds other weights than the model: {name} is {theirs.get(name)} in the file, "
            f"{own.get(name)} in the model; make it again with this configuration."
        )
    model.load_state_dict(weights)
