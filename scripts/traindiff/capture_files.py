"""A folder of captured steps, as `shardlab capture` writes it; of another trainer, see read_dumps.py.

    capture.json                     conditions, mesh, each rank's place, each step's loss, norm, learning rate
    initial.safetensors              whole weights before the first step
    stepN/samples.safetensors        gradients of each sample's part of the loss, see Samples
    stepN/gradients.safetensors      whole gradients before clipping; clipped: as the optimizer gets them
    stepN/optimizer.safetensors      the optimizer's whole state after the step, <parameter>//<key>
    stepN/weights.safetensors        whole weights after the step
    stepN/rankR.safetensors          what the modules of a rank returned; in JSON beside it, what it read
    restored/                        weights and optimizer of a second engine, from a checkpoint after the last step

Of another trainer only gradients, clipped, optimizer and weights are needed, each optional.
"""

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

NAME = "capture.json"
SAMPLES = 64
"""Largest number of rows of a step's samples."""
INDEX = "//index"
KINDS = ("gradients", "clipped", "optimizer", "weights")


class InputError(Exception):
    """A dump or an option that cannot be used; the message names it and what would work."""


def read_json(path: Path) -> Any:
    """Read a file of JSON.

    Raises:
        InputError: it is missing, cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); write it again.") from None


def rank_file(folder: Path, step: int, rank: int) -> Path:
    """Return the file of what a rank read and computed in a step; its notes are next to it, in JSON."""
    return folder / f"step{step}" / f"rank{rank}.safetensors"


def missing(path: Path, name: str) -> InputError:
    """Return the error for a tensor that a file, or a step of a dump, should have."""
    return InputError(
        f"{path} is missing, or {name} in it; write all tensors in each file of a kind, or leave them out (--skip)."
    )


def same_shape(name: str, *places: tuple[Tensor, Path]) -> None:
    """Raise an InputError unless a tensor has one shape in two folders or files."""
    shapes = [tuple(value.shape) for value, _ in places]
    if shapes[0] != shapes[1]:
        listed = " and ".join(f"{shape} in {path}" for shape, (_, path) in zip(shapes, places, strict=True))
        raise InputError(f"{name} is {listed}; merge its shards (--merge), or compare trainings of the same model.")


class Tensors:
    """A safetensors file, or nothing if it does not exist, of which one tensor is in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def names(self) -> list[str]:
        return [] if self._file is None else [*self._file.keys()]

    @cached_property
    def metadata(self) -> dict[str, str]:
        return {} if self._file is None else self._file.metadata() or {}

    @cached_property
    def dtypes(self) -> set[str]:
        """Dtypes of its tensors, as safetensors names them (F32, BF16)."""
        return {self.dtype(name) for name in self.names}

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor without reading it."""
        file, own = self._at(name)
        return file._file.get_slice(own).get_dtype()

    def _at(self, name: str) -> "tuple[Tensors, str]":
        """Return the file that has a tensor, or its first part, and the tensor's name there."""
        return self, name

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor in its own dtype.

        Raises:
            InputError: the file, or a tensor of that name in it, is missing.
        """
        if name not in self:
            raise missing(self.path, name)
        value: Tensor = self._file.get_tensor(name)
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""
        file, own = self._at(name)
        return tuple(file._file.get_slice(own).get_shape())

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __bool__(self) -> bool:
        return self._file is not None

    @cached_property
    def _file(self) -> Any:
        if not self.path.exists():
            return None
        try:
            return safe_open(self.path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{self.path} is not a safetensors file ({error}); write it again.") from None


class Capture:
    """A capture that is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}
        if (folder / NAME).exists():
            self.about = read_json(folder / NAME)

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step")) for path in self.folder.glob("step*") if path.is_dir())

    def tensors(self, name: str) -> Tensors:
        """Return the tensors of a file, by its name without the ending."""
        return Tensors(self.folder / f"{name}.safetensors")

    def ranks(self, step: int) -> list["RankStep"]:
        """Return what each rank read and computed in a step; nothing for what comes after the last one."""
        if step < 0:
            return []
        return [RankStep(self, step, rank, about) for rank, about in enumerate(self.about.get("ranks", []))]

    def has_update(self, step: int) -> bool:
        """Return whether the weights before and after a step are known."""
        return bool(self.before(step)) and bool(self.tensors(f"step{step}/weights"))

    def updates(self, step: int) -> Callable[[str], Tensor]:
        """Return what a step added to a weight, by the weight's name."""
        before, after = self.before(step), self.tensors(f"step{step}/weights")

        def update(name: str) -> Tensor:
            values = after[name], before[name]
            same_shape(name, (values[0], after.path), (values[1], before.path))
            return values[0].double() - values[1].double()

        return update

    def before(self, step: int) -> Tensors:
        """Return the weights before a step."""
        return self.tensors(f"step{step - 1}/weights" if step else "initial")

    def unreduced(self, step: int) -> dict[int, Tensors]:
        """Return the gradients of each rank, where ranks that should hold the same ones do not."""
        return {}

    def shown(self, step: int) -> dict[str, Any]:
        """Return what the trainer said of a step."""
        return dict(enumerate(self.about.get("steps", []))).get(step, {})


class Samples:
    """The gradients of each sample's part of a step's loss: their sum is the step's gradient.

    Of each parameter a tensor (samples, values), and where only some values are kept `<parameter>//index`, their flat
    indices. The file's metadata are JSON lists: `ids` and `targets` of each sample, and `parts`, if each row is of
    only a part of a sample's sequence.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.names = [name for name in tensors.names if not name.endswith(INDEX)]
        sizes: Any = sum(tensors[name].double().flatten(1).norm(dim=1) ** 2 for name in self.names)
        self.taken = [row for row, size in enumerate(sizes.tolist()) if size != 0]
        """The rows that are looked at: others, without targets, have no gradient and can have any weight."""
        self.ids, self.targets, self.parts = (self._listed(key) for key in ("ids", "targets", "parts"))
        self.indexed = {name.removesuffix(INDEX) for name in tensors.names if name.endswith(INDEX)}
        """Parameters of which only some values are kept."""

    def _listed(self, key: str) -> list[Any]:
        found: list[Any] = json.loads(self.tensors.metadata.get(key, "[]"))
        return found and [found[row] for row in self.taken]

    def __len__(self) -> int:
        return len(self.taken)

    def __getitem__(self, name: str) -> Tensor:
        """Return the rows of a parameter's gradient."""
        return self.tensors[name].double().flatten(1)[self.taken]

    def kept(self, name: str, value: Tensor) -> Tensor:
        """Return those values of a whole gradient that the rows have."""
        flat = value.double().flatten()
        return flat[self.tensors[name + INDEX]] if name in self.indexed else flat

    def label(self, row: int) -> str:
        """Return the name of a row."""
        label = f"{self.ids[row]}" if self.ids else f"#{self.taken[row]}"
        return f"{label} (part {self.parts[row]})" if self.parts else label


class RankStep:
    """What one rank read and computed in one step."""

    def __init__(self, capture: Capture, step: int, rank: int, about: dict[str, Any]) -> None:
        self.rank, self.about = rank, about
        self.place: dict[str, int] = about["place"]
        """The rank's coordinate along each axis."""
        self.mesh: dict[str, int] = capture.about["mesh"]
        self._has_first_position: bool = capture.about["has_first_position"]
        path = rank_file(capture.folder, step, rank)
        self.tensors = Tensors(path)
        self.notes = read_json(path.with_suffix(".json"))

    @cached_property
    def order(self) -> dict[str, int]:
        """Place of each module in the order in which they returned."""
        return {name: place for place, name in enumerate(self.notes["order"])}

    def samples(self, micro_batch: int) -> list[int]:
        """Return the samples of a micro-batch, without those that fill it up."""
        return self.notes["indices"][micro_batch][: self.notes["counts"][micro_batch]]

    def lengths(self, micro_batch: int) -> tuple[list[int], list[int]]:
        """Return how long this rank's parts of a micro-batch's sequences are, and how long those that it has whole."""
        return tuple(self.notes["lengths"][micro_batch])

    def lacks(self, value: Tensor) -> bool:
        """Return whether an output is of the first position of a split sequence, which this rank does not have: what is
        computed from a class token alone, (rows, features).
        """
        return self._has_first_position and self.about["sequence"]["rank"] > 0 and value.dim() == 2

    def outputs(self) -> Iterator[tuple[int, str]]:
        """Yield (micro-batch, name) of each output of a module."""
        for name in self.tensors.names:
            micro, _, rest = name.split("/", 2)
            yield int(micro), rest

    def output(self, micro_batch: int, name: str) -> Tensor:
        return self.tensors[f"{micro_batch}/output/{name}"]
