"""Resuming: from the newest valid checkpoint, or from a given one of any strategy on any number of ranks."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from shardlab.data import store
from shardlab.errors import UserError
from shardlab.files import link
from shardlab.models.weights import assign, in_one_piece
from shardlab.records import manifest
from shardlab.records.manifest import Manifest
from shardlab.runtime.batches import Steps
from shardlab.runtime.distributed import World
from shardlab.runtime.engine import Engine
from shardlab.runtime.tasks import Task
from shardlab.settings.run_identity import difference, flat, identity_of, of_numbers
from shardlab.settings.types import Run
from shardlab.train.checkpoint import BEST

FREE = (
    "epochs",
    "max_steps",
    "gradient_accumulation_steps",
    "loss_chunks",
    "activation_checkpointing",
    "compile",
    "compile_backend",
    "precision",
    "deterministic",
    "evaluation",
    "eval_batch_size",
    "keep_best",
    "checkpoint_interval_steps",
    "checkpoint_interval_minutes",
    "keep_last_checkpoints",
)
"""Recipe keys that may change when a run resumes: its length, and settings that do not affect the result."""


def initial_manifest(run: Run, task: Task, world: World, initial: str) -> Manifest:
    """Return the manifest of a training before its first step; ``initial`` is the SHA-256 of its initial weights."""
    fingerprint = store.fingerprint_of(task.folder)
    recipe = {key: value for key, value in run.recipe.model_dump(mode="json").items() if key not in FREE}
    return Manifest(
        step=0,
        best=None,
        identity=identity_of(run, fingerprint),
        settings=run.model_dump(mode="json"),
        training={
            "workload": run.workload,
            "seed": run.seed,
            "data": fingerprint,
            "initial_weights": initial,
            "recipe": recipe,
        },
        world_size=world.size,
        files={},
    )


def latest_checkpoint(output: Path, start: Manifest, world: World, *, restart: bool) -> Path | None:
    """Return the newest valid checkpoint in a run's folder, the same on every rank; None without one. A collective.

    A damaged checkpoint is skipped with a warning, and the previous one is tried.

    Raises:
        UserError: it was written with other settings.
    """
    for folder in [] if restart else world.gather(manifest.saved(output))[0]:
        try:
            checkpoint = _checked_manifest(folder, world)
        except UserError as error:
            if world.is_rank0:
                print(f"warning: skipping a checkpoint: {error}", flush=True)
            continue
        key = difference(start.training, checkpoint.training)
        if key is None and checkpoint.identity.numbers == start.identity.numbers:
            return folder
        key = difference(of_numbers(start.settings), of_numbers(checkpoint.settings)) or key
        raise UserError(
            f"{folder} was written with a different {key}; change it back to resume, or train from scratch, which "
            "replaces these checkpoints, with --config restart=true."
        )
    return None


def _checked_manifest(folder: Path, world: World) -> Manifest:
    """Return the manifest of a valid checkpoint; each rank hashes its part of the files. A collective.

    Raises:
        UserError: the checkpoint is damaged; the same error on every rank.
    """
    try:
        checkpoint = manifest.read(folder)
        wrong = manifest.damage(folder, checkpoint, sorted(checkpoint.files)[world.rank :: world.size])
    except UserError as error:
        checkpoint, wrong = None, str(error)
    if sentence := next(filter(None, world.gather(wrong)), None):
        raise UserError(sentence)
    assert checkpoint is not None
    return checkpoint


def restore(start: Manifest, engine: Engine, steps: Steps, folder: Path | None, world: World, output: Path) -> Manifest:
    """Load a checkpoint's state into an engine; return its manifest, without one ``start``.

    No step is taken: it would change buffers and draw random numbers, and the model may not accept made-up samples.

    Raises:
        UserError: the checkpoint is damaged, or belongs to another workload, seed, data set or recipe.
    """
    if folder is None:
        return start
    checkpoint = _checked_manifest(folder, world)
    if key := difference(start.training, checkpoint.training):
        ours, saved = (dict(flat(values)).get(key) for values in (start.training, checkpoint.training))
        raise UserError(
            f"{folder} was written by a training with a different {key}: {saved}, and this run has {ours}; resume "
            "with the same, or start from scratch without --resume."
        )
    if checkpoint.step > steps.count:
        raise UserError(
            f"{folder} is at step {checkpoint.step}, beyond this run's {steps.count} steps; raise max_steps."
        )
    saved = _saved(folder)
    if state := saved["optimizer"]:  # plain SGD has none
        engine.create_optimizer_state({name: value.dtype for name, value in state.items()})
        # A parameter that had no gradient yet has no state under PyTorch's own engines; under DeepSpeed it has.
        tensors = {name: value for name, value in engine.optimizer_state().items() if name in state}
        _load(folder, "optimizer", tensors, world)
        engine.load_optimizer_state(tensors)
    tensors = engine.weights_state()
    _load(folder, "weights", tensors, world)
    engine.load_weights(tensors)
    if world.is_rank0:
        output.mkdir(parents=True, exist_ok=True)
        (output / BEST).unlink(missing_ok=True)
        if BEST in checkpoint.files:
            link(folder / BEST, output / BEST)
    return start.model_copy(update={"step": checkpoint.step, "best": checkpoint.best, "skipped": checkpoint.skipped})


def _saved(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return names and shapes of a checkpoint's tensors by kind, as tensors on the meta device."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    tensors: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
    for full_name, value in (
        HuggingFaceStorageReader(str(folder / "shards")).read_metadata().state_dict_metadata.items()
    ):
        kind, _, name = full_name.partition("/")
        tensors[kind][name] = torch.empty(value.size, dtype=value.properties.dtype, device="meta")  # type: ignore[union-attr]
    return tensors


def _load(folder: Path, kind: str, tensors: dict[str, Tensor], world: World) -> None:
    """Read one kind of a checkpoint's tensors into these; a collective.

    Raises:
        UserError: they belong to another model or another optimizer.
    """
    # Imported here: takes a second, which runs without checkpoints do not need.
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder / "shards"))
    try:
        pieces = {name: in_one_piece(value) for name, value in tensors.items()}
        named = {f"{kind}/{name}": value for name, value in pieces.items()}
        load(named, storage_reader=reader, no_dist=world.size == 1)
        for name, value in tensors.items():
            if pieces[name] is not value:
                assign(value, cast(Any, pieces[name]).full_tensor())
    except (CheckpointException, OSError, RuntimeError, ValueError) as error:
        first: Any = error
        if failures := getattr(error, "failures", None):
            first = next(iter(failures.values()))[0]
        raise UserError(
            f"the {kind} of {folder} cannot be read into this run ({str(first).splitlines()[0]}); continue with the "
            "model and the optimizer that wrote it."
        ) from error
