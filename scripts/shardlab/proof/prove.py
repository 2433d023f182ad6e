"""Prove strategies on a tiny model: what each rank computes in a step, against the plain model in one process; the
proofs as a table.
"""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch

from shardlab import models
from shardlab.errors import UserError
from shardlab.models import contents
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
from shardlab.settings import model_rules
from shardlab.settings.types import Run, Strategy

TOLERANCE = 1e-9
"""Largest difference of loss, gradient norm and gradients, relative to the quantity's largest value, in float64."""
TOLERANCE_OF_UPDATES = 1e-6
"""That of the first update: Adam divides a gradient by its size, so rounding in small ones counts."""
OWN_STATISTICS = "; its batch norm has statistics of each rank's samples"
NOISE_MULTIPLE, MOST_NOISE = 4, 1e-7
"""A model whose rounding is more than a part of ``TOLERANCE`` has so many times of it, up to that."""
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
