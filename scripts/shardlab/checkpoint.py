"""Weights on disk: safetensors under the plain model's names, whole or not there."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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
    own = {name: value.shape for name, value in model.state_dict().items()}
    with _open(path) as file:
        _check(file, own, path, whole=True)
        model.load_state_dict({name: file.get_tensor(name) for name in own})


def materialize(model: nn.Module, path: Path, device: torch.device) -> None:
    """Give a model without weights, or a part of one, its weights on ``device``; of a DTensor only this rank's shard.

    One tensor is in memory at a time.

    Raises:
        UserError: the file is missing, damaged or of another model.
    """
    model.to_empty(device=device)
    own = model.state_dict()
    with _open(path) as file, torch.no_grad():
        _check(file, {name: value.shape for name, value in own.items()}, path, whole=False)
        for name, value in own.items():
            assign(value, file.get_tensor(name))


def assign(target: Tensor, whole: Tensor) -> None:
    """Write a whole tensor into a tensor or, of its shard on this rank, into a DTensor; no communication."""
    if (mesh := getattr(target, "device_mesh", None)) is None:
        target.copy_(whole)
        return
    from torch.distributed.tensor import distribute_tensor

    shard = cast(Any, target)
    whole = whole.to(target.dtype)
    shard.to_local().copy_(distribute_tensor(whole, mesh, shard.placements, src_data_rank=None).to_local())


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run the rule that makes it (snakemake {path}).") from None
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and run the rule that makes it.") from None


def _check(file: Any, own: Mapping[str, torch.Size], path: Path, *, whole: bool) -> None:
    theirs = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    wrong = [name for name, shape in own.items() if theirs.get(name) != tuple(shape)]
    if whole:
        wrong += theirs.keys() - own.keys()
    if wrong:
        name = min(wrong)
        mine = tuple(own[name]) if name in own else None
        raise UserError(
            f"{path} holds other weights than the model: {name} is {theirs.get(name)} in the file, "
            f"{mine} in the model; make it again with this configuration."
        )
