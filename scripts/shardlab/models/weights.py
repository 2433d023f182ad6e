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
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Dtypes by their names in the safetensors format."""
FLOATS = {DTYPES[dtype] for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


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
        if like.dtype not in DTYPES:
            kind = str(like.dtype).removeprefix("torch.")
            raise UserError(
                f"{name} is {kind}, which safetensors cannot hold; give it another type, or register it as a "
                "buffer with persistent=False."
            )
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
            if value.dtype != like.dtype and not (value.is_floating_point() and like.is_floating_point()):
                raise ValueError(f"{name} is {value.dtype}, expected {like.dtype}")
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
    """Allocate a model's meta parameters, and buffers made from them; the other buffers keep their values, and what
    several modules share stays shared.
    """
    kept = {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}
    of_parameters, of_buffers = (
        names_of_each(named(remove_duplicate=False)) for named in (model.named_parameters, model.named_buffers)
    )
    model.to_empty(device=device)
    for first, *others in of_buffers:
        # Offloaded weights are on the CPU between their uses, but nothing moves a buffer to the device.
        value = kept.get(first, model.get_buffer(first)).to(buffers or device, copy=True)
        for name in (first, *others):
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, value)
    for first, *others in of_parameters:
        for name in others:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, model.get_parameter(first))


def names_of_each(named: Iterable[tuple[str, Tensor]]) -> list[list[str]]:
    names_by_id: dict[int, list[str]] = defaultdict(list)
    for name, value in named:
        names_by_id[id(value)].append(name)
    return [*names_by_id.values()]


def assign(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into a tensor, or this rank's shard of it into a DTensor; no communication."""
    if (mesh := getattr(target, "device_mesh", None)) is None:
        target.copy_(whole)
        return
    if not whole.numel():  # a shard of it is filled up to one row
        return
    from torch.distributed.tensor import distribute_tensor

    shard = cast(Any, target)
    if not target.numel():
        return
    whole = whole.to(target.dtype)
    shard.to_local().copy_(distribute_tensor(whole, mesh, shard.placements, src_data_rank=None).to_local())


def in_one_piece(value: Tensor) -> Tensor:
    """Return a DTensor of which each rank has one piece, as checkpoints take them; any other tensor unchanged.

    Of matrices packed into one (gate and up) a tensor-parallel rank has a piece each: these are split along another
    dimension instead. A collective.
    """
    placements: Any = getattr(value, "placements", ())
    if not is_packed(placements):
        return value
    from torch.distributed.tensor import Shard

    other = next(dim for dim in reversed(range(value.dim())) if dim != placements[-1].dim)
    return cast(Any, value).redistribute(placements=[*placements[:-1], Shard(other)])  # type: ignore[no-any-return]


def is_packed(placements: Any) -> bool:
    """Return whether tensor parallelism, the innermost axis, gives each rank several pieces."""
    if not placements or not hasattr(placements[-1], "split_factor"):
        return False
    return bool(placements[-1].split_factor > 1)


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
    """Raise a UserError unless the file has each weight of a model in its shape and, if ``whole``, no other.

    Floating-point weights may have another precision in the file.
    """
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    theirs = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    ours = {name: (DTYPES[value.dtype], tuple(value.shape)) for name, value in own.items()}
    wrong = [name for name in ours if name not in theirs or not _fits(theirs[name], ours[name])]
    if whole:
        wrong += theirs.keys() - ours.keys()
    if wrong:
        name = min(wrong)
        raise UserError(
            f"{path} has other weights than the model: {name} is {_text(theirs.get(name))} in the file, "
            f"{_text(ours.get(name))} in the model; recreate it with this configuration."
        )


def _fits(theirs: tuple[str, tuple[int, ...]], ours: tuple[str, tuple[int, ...]]) -> bool:
    same = theirs[0] == ours[0] or {theirs[0], ours[0]} <= FLOATS
    return same and theirs[1] == ours[1]


def _text(value: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if value is None else f"{value[0]} {value[1]}"
