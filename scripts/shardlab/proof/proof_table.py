"""Proofs as a table for people."""

from collections.abc import Sequence

from shardlab.proof.prove import OWN_STATISTICS, Proof
from shardlab.settings import load

REMEDIES = {
    "tp": "the tensor-parallel plan lacks a layer or splits one wrongly: write a whole one under `tensor:`",
    "ep": "the experts are not split as the model computes them: leave `ep` out",
    "cp": "the model looks beyond its part of the sequence in a way that cp does not know: leave `cp` out",
    "pp": "a stage gets less than the layers read: leave `pp` out",
}
"""Axis of a strategy that differs, and of none that is equal: what to do."""


HEAD = "strategy        verdict    apart  weights   time  reason"
"""Title of the rows: largest relative difference, part of the weights on a rank, seconds."""


def line(proof: Proof) -> str:
    """Format one row."""
    apart, held = (f"{proof.largest:.0e}", f"{proof.held:.0%}") if proof.trained else ("", "")
    return f"{proof.strategy:<16}{proof.verdict:<10}{apart:>6}{held:>9}{proof.seconds:>5.1f} s  {proof.reason}".rstrip()


def summary(proofs: Sequence[Proof]) -> list[str]:
    """Return what to do about what differs, and how many are what."""
    equal = [proof.strategy for proof in proofs if proof.verdict == "equal"]
    lines = []
    for proof in proofs:
        if proof.verdict == "differs":
            lines.append(f"{proof.strategy}: {remedy(proof, equal)}.")
    counts = {
        verdict: sum(proof.verdict == verdict for proof in proofs)
        for verdict in ("equal", "differs", "refused", "failed")
    }
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    return lines


def remedy(proof: Proof, equal: Sequence[str]) -> str:
    """Return what to do about a strategy that differs; ``equal``: the ones that do not."""
    right = {axis for name in equal for axis in load.variant_of_strategy(name).degrees}
    axes = load.variant_of_strategy(proof.strategy).degrees.keys() - right
    own = next((text for axis, text in REMEDIES.items() if axis in axes), "")
    if proof.reason.endswith(OWN_STATISTICS):
        own = "set recipe.sync_batch_norm"
    use = f"use {', '.join(equal[:4])}" if equal else "train on one device"
    return f"{own}, or {use}" if own else use
