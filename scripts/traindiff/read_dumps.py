"""Dumps of other trainers as captures: files of safetensors whose names and shards are brought into one form.

All files of the same step and kind are parts of one set of tensors. A tensor is joined when it is read.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from traindiff.capture_files import Capture, InputError, Tensors, missing, read_json
from traindiff.pair import LIMITS, NUMBERS

ENDING = ".safetensors"
FILE = re.compile(r"(initial|samples|gradients|clipped|optimizer|weights)(?:-(\d+))?(?:\..+)?")
"""Kind and step of a file: gradients-0, weights-12.tp0; without a number of step 0."""
WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of names that torch.compile, FSDP1 and activation checkpointing add; DDP's `module.` see ``_wrapper``."""
SHOWN = re.compile(r"step-?(\d+)\.json")
"""Names of what a trainer wrote of a step."""
UNREDUCED = "unreduced"
UNREDUCED_FILE = re.compile(rf"{UNREDUCED}-(\d+)\.rank(\d+)\.safetensors")


@dataclass
class Rules:
    """How names and shards are brought into one form."""

    rename: list[tuple[str, str]] = field(default_factory=list)
    """(regular expression, replacement), applied in order to the names of the other training."""
    merge: list[tuple[str, int]] = field(default_factory=list)
    """(regular expression of a whole name, dimension along which the files' parts are joined)."""
    skip: list[str] = field(default_factory=list)
    """Regular expressions of whole names that are left out."""

    def name(self, name: str) -> str:
        name = WRAPPERS.sub("", name)
        for pattern, new in self.rename:
            name = re.sub(pattern, new, name)
        return name

    def dimension(self, name: str) -> int | None:
        """Return the dimension along which the parts of a tensor are joined."""
        return next((dim for pattern, dim in self.merge if re.fullmatch(pattern, name)), None)

    def skips(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name.split("//")[0]) for pattern in self.skip)


class Dump(Capture):
    """A dump that is read as a capture."""

    def __init__(self, folder: Path, files: list[Path], rules: Rules) -> None:
        super().__init__(folder)
        groups: dict[str, list[Path]] = defaultdict(list)
        for path in files:
            groups[_file(path.relative_to(folder))].append(path)
        self.files = {
            name: Parts(self, name, sorted(paths, key=_natural), rules) for name, paths in sorted(groups.items())
        }
        trained = [str(shown["dtype"]) for shown in self._shown.values() if shown.get("dtype") in NUMBERS]
        if trained:
            self.about["computed"] = max(trained, key=lambda dtype: LIMITS[NUMBERS[dtype]])

    @property
    def steps(self) -> list[int]:
        return sorted({int(name.partition("/")[0].removeprefix("step")) for name in self.files if "/" in name})

    def tensors(self, name: str) -> Tensors:
        return self.files.get(name) or super().tensors(name)

    def unreduced(self, step: int) -> dict[int, Tensors]:
        """Return the gradients that ranks hold where they should be equal, and are not (`unreduced-N.rankR`)."""
        pattern = f"step{step}/{UNREDUCED}"
        return {int(name.removeprefix(pattern)): file for name, file in self.files.items() if name.startswith(pattern)}

    def shown(self, step: int) -> dict[str, Any]:
        """Return what the trainer wrote of a step: ids, loss, groups, ... (`step-N.json`)."""
        return self._shown.get(step, {})

    @cached_property
    def _shown(self) -> dict[int, dict[str, Any]]:
        paths = self.folder.rglob("*.json") if self.folder.is_dir() else []
        found = {int(number[1]): path for path in sorted(paths) if (number := SHOWN.fullmatch(path.name))}
        values = {step: read_json(path) for step, path in found.items()}
        return {step: value for step, value in values.items() if isinstance(value, dict)}


class Parts(Tensors):
    """The tensors of several files."""

    def __init__(self, dump: Dump, name: str, paths: list[Path], rules: Rules) -> None:
        super().__init__(dump.folder / name)
        self.rules, self.paths = rules, paths
        self.places: dict[str, list[tuple[Tensors, str]]] = defaultdict(list)
        named = {path: {former: rules.name(former) for former in Tensors(path).names} for path in paths}
        wrapper = _wrapper([name for names in named.values() for name in names.values()])
        for path, names in named.items():
            file = Tensors(path)
            for former, wrapped in names.items():
                name = wrapped.removeprefix(wrapper)
                if rules.skips(name):
                    continue
                if any(other != former for _, other in self.places[name]):
                    raise InputError(
                        f"{self.places[name][0][1]} and {former} of {dump.folder} both become {name}; write --rename "
                        "so that they differ."
                    )
                self.places[name].append((file, former))

    @cached_property
    def names(self) -> list[str]:
        return [*self.places]

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The metadata of its first file."""
        return Tensors(self.paths[0]).metadata

    def _at(self, name: str) -> tuple[Tensors, str]:
        return self.places[name][0]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor, joined.

        Raises:
            InputError: it is missing, its parts do not fit together, or differ though no --merge names them.
        """
        if name not in self:
            raise missing(self.path, name)
        places = self.places[name]
        values = [file[former] for file, former in places]
        dim = self.rules.dimension(name)
        paths = f"{places[0][0].path} and {places[-1][0].path.name}"
        if dim is not None and len(values) > 1:
            try:
                return torch.cat(values, dim)
            except (RuntimeError, IndexError):
                shapes = " and ".join(str(tuple(value.shape)) for value in values[:2])
                raise InputError(
                    f"{name} cannot be joined along dimension {dim} (--merge): {shapes} in {paths}."
                ) from None
        if any(each.shape != values[0].shape or not _same(each, values[0]) for each in values[1:]):
            raise InputError(
                f"{name} differs between {paths}: if these are shards, join them with --merge "
                f"'{re.escape(name)}=DIM'; if not, all ranks should have the same values, but do not."
            )
        return values[0]


def _wrapper(names: list[str]) -> str:
    """Return what DDP, or several wrappers around each other, put before all names."""
    wrapper = ""
    while names and all(name.startswith(f"{wrapper}module.") for name in names):
        wrapper += "module."
    return wrapper


def _same(value: Tensor, other: Tensor) -> bool:
    """Return whether replicas are equal: bitwise, or up to rounding."""
    largest = float(other.double().abs().max()) if other.numel() else 0.0
    return torch.allclose(value.double(), other.double(), 1e-5, 1e-5 * largest, True)


def _file(path: Path) -> str:
    """Return which file of a capture a file is, by its path in the dump.

    Raises:
        InputError: its name does not say that.
    """
    if own := UNREDUCED_FILE.fullmatch(path.name):
        return f"step{own[1]}/{UNREDUCED}{own[2]}"
    if not (found := FILE.fullmatch(path.name.removesuffix(ENDING))):
        raise InputError(
            f"{path}: its name does not say what it contains; name it gradients-N{ENDING} (or clipped, optimizer, "
            f"weights; N: the step, from 0), or initial{ENDING}."
        )
    return "initial" if found[1] == "initial" else f"step{int(found[2] or 0)}/{found[1]}"


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order rank 2 before rank 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]
