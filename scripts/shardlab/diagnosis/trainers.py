"""Dumps of other trainers as captures: files of safetensors, whose names and shards are brought into one form.

A folder has files whose names say what they are (gradients, clipped, optimizer or weights) and which step they belong
to, such as `gradients-0.safetensors` or `step1/weights.rank0.safetensors`; without a number it is step 0, and a file
without one of these words has gradients. Files of several ranks of a step are parts of the same tensors.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from shardlab.diagnosis.capture_files import KINDS, Tensors
from shardlab.errors import UserError

ENDING = ".safetensors"
WORDS = {
    "grad": "gradients",
    "clip": "clipped",
    "optim": "optimizer",
    "weight": "weights",
    "param": "weights",
    "model": "weights",
}


class Options(NamedTuple):
    """How names and shards are brought into one form."""

    rename: list[str]
    """Substitutions PATTERN=NAME of regular expressions, in order."""
    merge: list[str]
    """PATTERN=DIM: along which dimension the ranks' parts of tensors are joined; others are equal on all ranks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="PATTERN=NAME",
        help="rename tensors of both (regular expression, as in re.sub); may be given several times",
    )
    parser.add_argument(
        "--merge",
        action="append",
        default=[],
        metavar="PATTERN=DIM",
        help="join the ranks' parts of tensors of this name along a dimension; may be given several times",
    )


def read(source: Path, options: Options, place: Path) -> Path:
    """Return the folder of a capture with the tensors of a folder or a file, written to ``place``.

    Raises:
        UserError: there are no such files, an option is wrong, or ranks hold different tensors that are not merged.
    """
    if (source / "capture.json").exists():
        return source
    files = [source] if source.is_file() else sorted(source.rglob(f"*{ENDING}"))
    if not files:
        raise UserError(f"{source} has no {ENDING} files; see docs/diagnose.md for how to write them.")
    groups: dict[tuple[int, str], list[Path]] = defaultdict(list)
    for path in files:
        groups[_what(path, source)].append(path)
    for (step, kind), paths in groups.items():
        tensors = _joined(paths, options)
        folder = place / (f"step{step}" if step >= 0 else "")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / (f"{kind}{ENDING}" if step >= 0 else f"initial{ENDING}"))
    return place


def _what(path: Path, source: Path) -> tuple[int, str]:
    """Return the step and the kind of a file; step -1: weights before the first step."""
    name = str(path.relative_to(source) if path != source else path.name).lower()
    kind = next((kind for word, kind in WORDS.items() if word in name), KINDS[0])
    if "initial" in name:
        return -1, "weights"
    without_rank = re.sub(r"(rank|tp|pp|dp|shard)[-_.]?\d+", "", name)
    number = re.search(r"\d+", without_rank)
    return int(number.group()) if number else 0, kind


def _joined(paths: list[Path], options: Options) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = defaultdict(list)
    for path in paths:
        file = Tensors(path)
        for name in file.names:
            found[_renamed(name, options.rename)].append(file[name])
    joined = {}
    for name, parts in found.items():
        dim = _dimension(name, options.merge)
        if dim is not None and len(parts) > 1:
            joined[name] = torch.cat(parts, dim)
            continue
        others = [part for part in parts[1:] if part.shape != parts[0].shape or not torch.allclose(part, parts[0])]
        if others:
            raise UserError(
                f"{name} differs between the files of {paths[0].parent}; if they are shards, join them with "
                f"--merge '{re.escape(name)}=DIM'."
            )
        joined[name] = parts[0].contiguous()
    return {name: value.contiguous() for name, value in joined.items()}


def _renamed(name: str, rename: list[str]) -> str:
    for rule in rename:
        pattern, equals, new = rule.partition("=")
        if not equals:
            raise UserError(f"--rename {rule}: write PATTERN=NAME, such as 'model\\.=' to drop a prefix.")
        try:
            name = re.sub(pattern, new, name)
        except re.error as error:
            raise UserError(f"--rename {rule}: {pattern} is no regular expression ({error}).") from None
    return name


def _dimension(name: str, merge: list[str]) -> int | None:
    for rule in merge:
        pattern, _, dim = rule.rpartition("=")
        if not pattern or not dim.isdigit():
            raise UserError(f"--merge {rule}: write PATTERN=DIM, such as '.*up.weight=0'.")
        if re.fullmatch(pattern, name):
            return int(dim)
    return None
