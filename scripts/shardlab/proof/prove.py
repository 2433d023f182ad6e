"""Prove strategies on a tiny model: what each rank computes in a step, against the plain model in one process: of a
folder, or of a workload before its weights are drawn. The proofs as a table.
"""

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch

from shardlab import models
from shardlab.data import model_config
from shardlab.errors import UserError
from shardlab.files import write_json
from shardlab.models import _transformers, contents
from shardlab.proof import tiny_config
from shardlab.proof.step_on_ranks import (
    GRADIENT,
    LOSS,
    NAME,
    NOTHING,
    UPDATED,
    Difference,
    Written,
    one_process,
    tiny_run,
    under_strategy,
)
from shardlab.proof.warm_ranks import Answer, Ranks
from shardlab.runtime.tasks import is_packed
from shardlab.settings import load, model_rules, pretrained
from shardlab.settings.types import Run, Strategy

TOLERANCE = 1e-9
"""Largest difference of loss, gradient norm and gradients, relative to the quantity's largest value, in float64."""
TOLERANCE_OF_UPDATES = 1e-6
"""That of the first update: Adam divides a gradient by its size, so rounding in small ones counts."""
OWN_STATISTICS = "; its batch norm has statistics of each rank's samples"
NOISE_MULTIPLE, MOST_NOISE = 4, 1e-7
"""A model whose rounding is more than a part of ``TOLERANCE`` has so many times of it, up to that."""
LARGEST = 2
"""Degree of each axis in a proof: more ranks prove nothing more, if key heads are fewer than the ranks here, too."""
NO_TINY_MODEL = "there is no tiny model that trains"
Verdict = Literal["equal", "differs", "refused", "failed"]


class Proof(NamedTuple):
    """What a step under a strategy was, compared with one process."""

    strategy: str
    verdict: Verdict
    reason: str = ""
    """A sentence: why it is refused, or what differs by how much."""
    largest: float = 0.0
    """Largest relative difference of loss, norm and gradients."""
    held: float = 0.0
    """Part of the weights that the rank with most of them holds."""
    seconds: float = 0.0

    @property
    def trained(self) -> bool:
        """Return whether a step was trained and compared."""
        return self.verdict in ("equal", "differs")


def prove(folder: Path, strategies: Mapping[str, Strategy | None], written: Written = NOTHING) -> Iterator[Proof]:
    """Yield the proof of each strategy with the model of ``folder``, whose sizes are tiny (proof/tiny_config.py).

    ``strategies``: settings by name; None: those of config/strategies.yaml. ``written``: keys of the workload's file.
    Call it in a process that has no threads.

    Raises:
        UserError: the model itself cannot be built or trained for a step.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        place = Path(scratch)
        groups: dict[int, Ranks] = {}

        def ranks(count: int) -> Ranks:
            if count not in groups:
                groups[count] = stack.enter_context(Ranks(count))
            return groups[count]

        single = tiny_run(folder, "single", None, written)
        model = models.build(single.model, single.task, torch.float64)  # imports its code, before there are forks
        left_out = {"left_out": keys} if (keys := contents.read_keys(model, written.layerdrop)) else {}
        mixes = any(map(contents.is_batch_norm, model.modules())) and not written.sync_batch_norm
        (answer,) = ranks(1).call(one_process, single, place)
        if answer.refusal or answer.failure:
            failure = f"{answer.failure}".rstrip(".")
            raise UserError(
                answer.refusal
                or f"the tiny model of {folder} that proofs train does not run in one process in float64: {failure}; "
                "only a training shows more."
            )
        refusal, seen, noise = answer.value
        if refusal:
            yield from (Proof(name, "refused", refusal) for name in strategies)
            return
        for name, settings in strategies.items():
            started = time.monotonic()
            try:
                run = tiny_run(folder, name, settings, written)
            except UserError as error:
                yield Proof(name, "refused", _plain(str(error), name, folder))
                continue
            if known := model_rules.refusal(run, left_out):
                yield Proof(name, "refused", _plain(known, name, folder))
                continue
            proof = judge(run, ranks(run.world_size).call(under_strategy, run, place), noise)
            if proof.verdict == "failed" and (known := model_rules.refusal(run, seen)):
                proof = Proof(name, "refused", known)
            reason = _plain(proof.reason, name, folder) + OWN_STATISTICS * (mixes and proof.verdict == "differs")
            yield proof._replace(reason=reason, seconds=time.monotonic() - started)


def _plain(reason: str, strategy: str, folder: Path) -> str:
    """Return a reason without what is the tiny model's alone: its folder, its workload, numbers of its layers."""
    shown = re.sub(r"\.\d+(?=\.)", ".*", reason.removeprefix(f"{strategy} x {NAME}: "))
    shown = ", ".join(dict.fromkeys(shown.split(", ")))  # the same of each layer
    return (
        shown.replace(f"model hf:{folder}", "the model")
        .replace(f"hf:{folder}", "the model")
        .replace(f"workload {NAME} ", "it ")
        .replace(f"config/workloads/{NAME}.yaml", "the workload's file")
    )


def judge(run: Run, answers: list[Answer], noise: float = 0.0) -> Proof:
    """Return the proof of a run from what its ranks answered; ``noise``: that of one process."""
    failed = [answer.failure for answer in answers if answer.failure]
    # Not that a rank waited in vain for another one, which failed or refused.
    causes = [text for text in failed if "onnection" not in text and "no answer" not in text]
    refusals = [answer.refusal for answer in answers if answer.refusal]
    if causes or (failed and not refusals):
        return Proof(run.strategy, "failed", (causes or failed)[0])
    if refusals:
        return Proof(run.strategy, "refused", refusals[0])
    found = [each for answer in answers for each in answer.value.differences]
    held = max(answer.value.held for answer in answers)
    strict = [each for each in found if not each.name.startswith(UPDATED)]
    largest = max(each.value for each in strict)
    tolerance = max(TOLERANCE, min(NOISE_MULTIPLE * noise, MOST_NOISE))
    outside = [each for each in strict if not each.value <= tolerance]
    if not outside:
        tolerance *= TOLERANCE_OF_UPDATES / TOLERANCE
        outside = [each for each in found if not each.value <= tolerance]
    if not outside:
        return Proof(run.strategy, "equal", largest=largest, held=held)
    return Proof(run.strategy, "differs", _what_differs(outside, found), largest, held)


def _what_differs(outside: list[Difference], found: list[Difference]) -> str:
    """Return a sentence that names the worst quantity, and how many others differ."""
    patterns = {models.without_numbers(each.name): each for each in sorted(outside, key=lambda one: one.value)}
    pattern, worst = list(patterns.items())[-1]
    names = {each.name for each in outside if each.name.startswith(GRADIENT)}
    of = {each.name for each in found if each.name.startswith(GRADIENT)}
    loss = "the loss, too" if any(each.name == LOSS for each in outside) else "the loss is equal"
    return f"{pattern} differs by {_percent(worst.value)} ({len(names)} of {len(of)} gradients; {loss})"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if 0.01 <= value < 1e4 else f"{value:.1e} times its largest value"


HEAD = "strategy        verdict    apart  weights   time  reason"
"""Title of the rows: largest relative difference, part of the weights on a rank, seconds."""


def line(proof: Proof) -> str:
    """Format one row."""
    apart, held = (f"{proof.largest:.0e}", f"{proof.held:.0%}") if proof.trained else ("", "")
    return f"{proof.strategy:<16}{proof.verdict:<10}{apart:>6}{held:>9}{proof.seconds:>5.1f} s  {proof.reason}".rstrip()


def summary(proofs: Sequence[Proof]) -> list[str]:
    """Return what to do about what differs, and how many are what."""
    equal = [proof.strategy for proof in proofs if proof.verdict == "equal"]
    lines = [f"{proof.strategy}: {remedy(proof, equal)}." for proof in proofs if proof.verdict == "differs"]
    counts = {verdict: sum(proof.verdict == verdict for proof in proofs) for verdict in get_args(Verdict)}
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    return lines


def remedy(proof: Proof, equal: Sequence[str]) -> str:
    """Return what to do about a strategy that differs; ``equal``: the ones that do not."""
    use = f"use {', '.join(equal[:4])}" if equal else "train on one device"
    return f"set recipe.sync_batch_norm, or {use}" if proof.reason.endswith(OWN_STATISTICS) else use


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
