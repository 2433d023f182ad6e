"""Weights on disk: safetensors under the plain model's names, written and read one tensor at a time."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from shardlab import models
from shardlab.errors import UserError, remedy
from shardlab.files import write_atomic

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Dtypes by their names in the safetensors format."""


def save(weights: Iterable[tuple[str, Tensor]], layout: Mapping[str, Tensor], path: Path) -> str:
    """Write whole weights as they arrive, one in memory at a time; return the file's SHA-256.

    ``layout`` has their names, in the same order, with tensors of the shapes and dtypes to write (on any device).

    Raises:
        UserError: the disk is full or not writable; no partial file is left.
    """
    digest = hashlib.sha256()
    write_atomic(path, lambda temporary: _write(temporary, weights, layout, digest))
    return digest.hexdigest()


def _write(path: Path, weights: Iterable[tuple[str, Tensor]], layout: Mapping[str, Tensor], digest: Any) -> None:
    """Write the safetensors format (huggingface.co/docs/safetensors), whose own library cannot stream."""
    header: dict[str, Any] = {}
    end = 0
    for name, like in layout.items():
        span = [end, end := end + like.nbytes]
        header[name] = {"dtype": DTYPES[like.dtype], "shape": list(like.shape), "data_offsets": span}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:

        def write(data: Any) -> None:
            file.write(data)
            digest.update(data)

        write(len(text).to_bytes(8, "little") + text)
        for (name, value), (expected, like) in zip(weights, layout.items(), strict=True):
            if name != expected or value.shape != like.shape:
                raise ValueError(f"got {name} {tuple(value.shape)}, expected {expected} {tuple(like.shape)}")
            value = value.detach().to("cpu", like.dtype).contiguous()
            write(value.reshape(-1).view(torch.uint8).numpy().data)


def materialize(
    model: nn.Module, path: Path, device: torch.device, *, whole: bool = True, buffers: torch.device | None = None
) -> None:
    """Load a model's weights onto ``device``; for a DTensor only this rank's shard.

    ``buffers``: the device of buffers (None: the same).

    One tensor is in memory at a time. A part of a model is not ``whole``: the file has more than it needs.

    Raises:
        UserError: the file is missing, damaged or belongs to another model.
    """
    allocate(model, device, buffers)
    own = models.state(model)
    with open_weights(path) as file, torch.no_grad():
        check_weights(file, own, path, whole=whole)
        for name, value in own.items():
            assign(value, file.get_tensor(name))


def allocate(model: nn.Module, device: torch.device, buffers: torch.device | None = None) -> None:
    """Allocate a model's meta parameters; buffers keep their values, tied parameters stay tied."""
    kept = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    model.to_empty(device=device)
    for name in [name for name, _ in model.named_buffers()]:
        owner, _, leaf = name.rpartition(".")
        # Offloaded weights are on the CPU between their uses, but nothing moves a buffer to the device.
        setattr(model.get_submodule(owner), leaf, kept[name].to(buffers or device, copy=True))
    for first, *others in names.values():
        for name in others:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, model.get_parameter(first))


def assign(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into a tensor, or this rank's shard of it into a DTensor; no communication."""
    if (mesh := getattr(target, "device_mesh", None)) is None:
        target.copy_(whole)
        return
    from torch.distributed.tensor import distribute_tensor

    shard = cast(Any, target)
    whole = whole.to(target.dtype)
    shard.to_local().copy_(distribute_tensor(whole, mesh, shard.placements, src_data_rank=None).to_local())


@contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """Open a safetensors file of weights.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} is missing; {remedy('make it', path)}.") from None
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); remove it and make it again.") from None


def check_weights(file: Any, own: Mapping[str, Tensor], path: Path, *, whole: bool) -> None:
    """Raise a UserError unless the file has each weight of a model in its shape and, if ``whole``, no other."""
    shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    wrong = [name for name, value in own.items() if shapes.get(name) != tuple(value.shape)]
    if whole:
        wrong += shapes.keys() - own.keys()
    if wrong:
        name = min(wrong)
        local = tuple(own[name].shape) if name in own else None
        raise UserError(
            f"{path} has other weights than the model: {name} is {shapes.get(name)} in the file, "
            f"{local} in the model; recreate it with this configuration."
        )
