"""Strategies that will train a transformers model are proven before its weights are drawn."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from shardlab.data import model_config
from shardlab.errors import UserError
from shardlab.files import write_json
from shardlab.models import _transformers
from shardlab.proof import tiny_config
from shardlab.proof.prove import Proof, prove, remedy
from shardlab.proof.step_on_ranks import Written
from shardlab.runtime.tasks import is_packed
from shardlab.settings import load, pretrained
from shardlab.settings.types import Run, Strategy

LARGEST = 2
"""Degree of each axis in a proof: more ranks prove nothing more, if key heads are fewer than the ranks here, too."""

NO_TINY_MODEL = "there is no tiny model that trains"


def check(run: Run, names: Iterable[str], kept: Path, tensor_parts: int = 1) -> list[Proof]:
    """Return the proofs that these strategies train a tiny model of a run's class as one process does. Of strategies
    that are alike but for their sizes, one is tried. DeepSpeed's are not.

    ``kept``: file of what is refused (settings/pretrained.py). ``tensor_parts``: largest degree of tensor parallelism
    among them. Call it in a process that has no threads.

    Raises:
        UserError: the run's folder is not a model of its task, or settings under `model:` do not fit it.
    """
    assert run.model.folder is not None
    _transformers.check(run.task, run.model.folder, run.model.args)
    strategies = {name: _small(load.variant_of_strategy(name)) for name in names}
    strategies = {name: settings for name, settings in strategies.items() if settings.engine == "torch"}
    try:
        proofs = _proofs(run, strategies, tensor_parts)
    except Exception as error:  # of the library, too, which checks sizes in many ways
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"{NO_TINY_MODEL}: {lines[0].rstrip('.')}"
        proofs = [Proof(name, "failed", reason) for name in strategies]
    packed = is_packed(run.task)
    equal = [proof.strategy for proof in proofs if proof.verdict == "equal"]
    refused = {
        proof.strategy: _why(proof, equal, packed=packed)
        for proof in proofs
        if proof.verdict in ("differs", "refused")
        or (proof.verdict == "failed" and (packed or _is_adapted(strategies[proof.strategy])))
    }
    write_json(kept, {pretrained.OF: pretrained.of_proofs(run), pretrained.REFUSED: refused})
    return proofs


def _why(proof: Proof, equal: list[str], *, packed: bool) -> str:
    """Return why a strategy must not train; ``packed``: rows of several documents."""
    if proof.verdict == "refused":
        return proof.reason
    use = remedy(proof, equal)
    if proof.verdict == "differs":
        one = "its documents one at a time" if packed else "one process"
        return f"at tiny sizes a step is not that of {one}: {proof.reason}; {use}."
    if proof.reason.startswith(NO_TINY_MODEL):
        use = "use task language_modelling, with one document in a row" if packed else "leave out tp, cp, ep, pp and mp"
    return f"it could not be proven at tiny sizes ({proof.reason}); {use}."


def _proofs(run: Run, strategies: dict[str, Strategy], tensor_parts: int) -> list[Proof]:
    """Return the proof of each strategy; of those with the same settings, the first one is tried."""
    assert run.model.folder is not None
    config, _ = _transformers.configuration(run.model.folder, run.model.args)
    layerdrop = tiny_config.layerdrop(config)
    written = Written(run.model.blocks, run.model.tensor, run.task, run.recipe.sync_batch_norm, layerdrop)
    first = {name: next(other for other in strategies if strategies[other] == strategies[name]) for name in strategies}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        unread = _transformers.unread(run.task, run.model.folder, run.model.args)
        tiny_config.write(config, folder, tensor_parts, longest(run), unread)
        try:
            tried = prove(folder, {name: strategies[name] for name in first.values()}, written)
            made = {proof.strategy: proof for proof in tried}
        except UserError as refusal:
            raise UserError(str(refusal).replace(str(folder), run.model.folder)) from None
    return [made[other]._replace(strategy=name) for name, other in first.items()]


def longest(run: Run) -> int | None:
    """Return the number of tokens of the longest sequence that a run trains; None if its data has no such limit."""
    return max((length for key in model_config.LENGTHS if (length := run.data.options.get(key))), default=None)


def _small(settings: Strategy) -> Strategy:
    degrees = {axis: min(degree, LARGEST) for axis, degree in settings.degrees.items()}
    return settings.model_copy(update=degrees)


def _is_adapted(settings: Strategy) -> bool:
    """Return whether a strategy needs more of the library's models than that they are modules."""
    return settings.single_process == "mp" or bool(settings.splits & {"layers", "tensors", "sequence", "experts"})
