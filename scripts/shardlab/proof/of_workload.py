"""Strategies that will train a transformers model are proven before its weights are drawn; proofs are kept in a file.

A proof holds for its tiny configuration, the versions of the libraries, the strategy and the code that trains.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from shardlab.errors import UserError
from shardlab.files import write_json
from shardlab.proof import proof_table, tiny_config
from shardlab.proof.prove import Proof, prove
from shardlab.proof.tiny_runs import Written, tiny_run
from shardlab.settings import code_fingerprint, load
from shardlab.settings.types import Run, Strategy

LARGEST = 2
"""Degree of each axis in a proof: more ranks prove nothing more, if key heads are fewer than the ranks here, too."""


def check(run: Run, names: Iterable[str], kept: Path, tensor_parts: int = 1) -> list[str]:
    """Check that these strategies train a tiny model of a run's class as one process does; return notes.

    ``tensor_parts``: largest degree of tensor parallelism among them. ``kept``: file with the proofs of earlier calls.
    Call it before the process has threads.

    Raises:
        UserError: a strategy does not; names the parameter that differs most, and what to do.
    """
    strategies = {name: _small(load.variant_of_strategy(name)) for name in names}
    strategies = {name: settings for name, settings in strategies.items() if settings.engine == "torch"}
    try:
        proofs = [*_proofs(run, strategies, kept, tensor_parts)]
    except UserError as error:
        if adapted := [name for name, settings in strategies.items() if _is_adapted(settings)]:
            raise UserError(
                f"{', '.join(adapted)} x {run.workload}: no tiny model of {run.model.name} could be made to prove them "
                f"({str(error).rstrip('.')}); leave them out, and use ddp or fsdp."
            ) from error
        return [f"no tiny model of {run.model.name} could be made, so nothing is proven before the training"]
    differing = [proof for proof in proofs if proof.verdict == "differs"]
    differing += [proof for proof in proofs if proof.verdict == "failed" and _is_adapted(strategies[proof.strategy])]
    if differing:
        first = differing[0]
        equal = [proof.strategy for proof in proofs if proof.verdict == "equal"]
        others = f" So do: {', '.join(proof.strategy for proof in differing[1:])}." if differing[1:] else ""
        raise UserError(
            f"{first.strategy} x {run.workload}: at tiny sizes a step is not that of one process: {first.reason}; "
            f"{proof_table.remedy(first.strategy, equal)}.{others}"
        )
    equal = [proof.strategy for proof in proofs if proof.verdict == "equal"]
    return [f"at tiny sizes, a step of these is that of one process: {', '.join(equal)}"] if equal else []


def _proofs(run: Run, strategies: dict[str, Strategy], kept: Path, tensor_parts: int) -> Iterator[Proof]:
    """Yield the proof of each strategy, from the file or new; new ones are added to it."""
    assert run.model.folder is not None
    written = Written(run.model.blocks, run.model.tensor)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tiny_config.write(tiny_config.read(Path(run.model.folder), run.model.args), folder, tensor_parts)
        keys = {name: _key(folder, name, settings, written) for name, settings in strategies.items()}
        known = _read(kept)
        for name, key in keys.items():
            if key in known:
                yield Proof(*known[key])._replace(strategy=name)
        missing = {name: strategies[name] for name, key in keys.items() if key not in known}
        for proof in prove(folder, missing, written) if missing else ():
            if proof.verdict != "failed":  # a failure may be this machine's
                known[keys[proof.strategy]] = [*proof]
            yield proof
    write_json(kept, known)


def _key(folder: Path, name: str, settings: Strategy, written: Written) -> str:
    """Return a digest of all that a proof depends on."""
    try:
        run = tiny_run(folder, name, settings, written)
        code = run.sources | run.model.sources
    except UserError as refusal:
        code = {"": str(refusal).replace(str(folder), "")}
    config = json.loads((folder / "config.json").read_text())
    depends = [torch.__version__, transformers.__version__, config, [*written], settings.model_dump()]
    text = json.dumps([*depends, code, code_fingerprint.proof_sources()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(kept: Path) -> dict[str, list[Any]]:
    try:
        found: dict[str, list[Any]] = json.loads(kept.read_text())
    except (OSError, ValueError):  # they are made again
        return {}
    return found


def _small(settings: Strategy) -> Strategy:
    degrees = {axis: min(degree, LARGEST) for axis, degree in settings.degrees.items()}
    return settings.model_copy(update=degrees)


def _is_adapted(settings: Strategy) -> bool:
    """Return whether a strategy needs more of the library's models than that they are modules."""
    return settings.single_process == "mp" or bool(settings.splits & {"layers", "tensors", "sequence", "experts"})
