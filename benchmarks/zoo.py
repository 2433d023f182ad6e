#!/usr/bin/env python3
"""Prove strategies on every decoder type of the installed transformers library.

Each type's own default configuration is made tiny (shardlab/proof), and a step
under each strategy compared with one process, in float64. Prints a line per
type, writes all proofs as JSON lines and, of a whole round, docs/models.md.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, write_text
from shardlab.proof import tiny_config
from shardlab.proof.prove import Proof, prove
from shardlab.proof.warm_ranks import import_for_ranks

STRATEGIES = (
    *("ddp", "fsdp", "fsdp_size", "mp", "pp", "pp_interleaved", "pp_zbv", "tp", "tp_sp", "tp_loss"),
    *("cp", "cp_ulysses", "cp_ring", "ep", "fsdp_tp", "fsdp_pp", "fsdp_ep", "fsdp_tp_pp"),
)
"""Columns: every axis, the schedules that differ in mechanism, the pairs of axes."""
SIGNS = {"equal": "=", "differs": "≠", "refused": "·", "failed": "!"}
AT_ONCE = 2
"""Types at a time."""


def main() -> None:
    """Prove, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types (default: all decoders)")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--output", type=Path, default=ROOT / "results/benchmarks/zoo.jsonl")
    parser.add_argument("--page", type=Path, help="write the table of the output's proofs to this page, and end")
    args = parser.parse_args()
    if args.page:
        write_text(args.page, page(read(args.output)))
        return
    started = time.monotonic()
    import_for_ranks()
    kinds = args.types or decoders()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w") as file:
        for row in rows(kinds, args.strategies):
            print(json.dumps(row), file=file, flush=True)
            print(text(row), flush=True)
    print(f"{len(kinds)} types in {(time.monotonic() - started) / 60:.1f} minutes")
    if not args.types:
        write_text(ROOT / "docs/models.md", page(read(args.output)))


def decoders() -> list[str]:
    """Return the library's types of causal language models: not encoders, and not what reads more than tokens."""
    from transformers.models.auto import modeling_auto as auto

    others = [
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    ]
    return sorted({*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}.difference(*others))


def rows(kinds: list[str], strategies: list[str]) -> Any:
    """Yield {type, seconds, error or proofs} of each type, each from a fork of this process."""
    context = multiprocessing.get_context("fork")
    waiting = [*kinds]
    running: dict[Any, tuple[Any, str]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            kind = waiting.pop(0)
            ours, theirs = context.Pipe()
            process = context.Process(target=of_type, args=(kind, strategies, theirs))
            process.start()
            theirs.close()
            running[ours] = process, kind
        for ready in wait([*running]):
            connection: Any = ready
            process, kind = running.pop(connection)
            try:
                yield connection.recv()
            except EOFError:
                yield {"type": kind, "seconds": 0.0, "error": "its process died"}
            process.join()


def of_type(kind: str, strategies: list[str], connection: Connection) -> None:
    """Send the row of a type."""
    started = time.monotonic()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    row: dict[str, Any] = {"type": kind}
    try:
        with tempfile.TemporaryDirectory() as folder:
            row["filled"] = tiny_config.write_type(kind, Path(folder))
            row["proofs"] = [proof._asdict() for proof in prove(Path(folder), dict.fromkeys(strategies))]
    except UserError as error:
        row["error"] = str(error)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    connection.send(row | {"seconds": time.monotonic() - started})


def text(row: dict[str, Any]) -> str:
    """Format a row for the terminal."""
    if "error" in row:
        return f"{row['type']:<24}{row['seconds']:>6.1f} s  {row['error'][:200]}"
    cells = [f"{proof['strategy']}{SIGNS[proof['verdict']]}" for proof in row["proofs"]]
    return f"{row['type']:<24}{row['seconds']:>6.1f} s  {' '.join(cells)}"


def read(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a round."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def page(found: list[dict[str, Any]]) -> str:
    """Format docs/models.md."""
    import torch
    import transformers

    tested = sorted((row for row in found if "proofs" in row), key=lambda row: row["type"])
    names = [proof["strategy"] for proof in tested[0]["proofs"]] if tested else []
    proofs = {row["type"]: {each["strategy"]: Proof(**each) for each in row["proofs"]} for row in tested}
    reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for kind, of_kind in proofs.items():
        for name, proof in of_kind.items():
            if proof.verdict != "equal":
                reasons[proof.verdict][f"`{name}`: {_plain(proof)}"].append(kind)
    lines = [
        "# Transformers models under each strategy",
        "",
        "Every decoder type of the pinned transformers library, made tiny, with random weights: one training step in "
        "float64 under each strategy, on 2 to 8 ranks of one machine, compared with the library's own model in one "
        "process. Compared are the loss, the gradient of every parameter and their norm (to 1e-9), and the first "
        "update (to 1e-6). `make zoo` writes this page; `shardlab check-model FOLDER` does the same for one model's "
        "config.json.",
        "",
        f"transformers {transformers.__version__}, PyTorch {torch.__version__.partition('+')[0]}; {len(tested)} types, "
        f"{sum(len(each) for each in proofs.values())} proofs, {sum(row['seconds'] for row in found) / 60:.0f} minutes "
        f"on one core, {AT_ONCE} types at a time.",
        "",
        "| | " + " | ".join(f"`{name}`" for name in names) + " |",
        "| --- |" + " --- |" * len(names),
        *(
            f"| {title} | " + " | ".join(str(sum(of[n].verdict == key for of in proofs.values())) for n in names) + " |"
            for key, title in (("equal", "equal"), ("differs", "differs"), ("refused", "refused"), ("failed", "failed"))
        ),
        "",
        "`=` equal, `≠` differs from one process (refused by `init`), `·` refused with a reason, `!` fails with an "
        "error.",
        "",
        "| type | " + " | ".join(f"`{name}`" for name in names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for kind, of_kind in proofs.items():
        lines.append(f"| {kind} | " + " | ".join(SIGNS[of_kind[name].verdict] for name in names) + " |")
    for verdict, title in (("differs", "What differs"), ("failed", "What fails"), ("refused", "What is refused")):
        if reasons[verdict]:
            lines += ["", f"## {title}", ""]
            ordered = sorted(reasons[verdict].items(), key=lambda each: (-len(each[1]), each[0]))
            lines += [f"- {text}: {', '.join(kinds)}." for text, kinds in ordered]
    if left := sorted((row for row in found if "error" in row), key=lambda row: row["type"]):
        lines += ["", "## Types without a tiny model", ""]
        lines += [f"- {row['type']}: {' '.join(row['error'].split())[:200]}" for row in left]
    return "\n".join(lines) + "\n"


def _plain(proof: Proof) -> str:
    """Return a proof's reason without what only the check's own run has."""
    reason = " ".join(proof.reason.split()).rstrip(".")
    reason = reason.removeprefix(f"{proof.strategy} x model: ")
    for word in ("/tmp/",):
        if word in reason:
            before, _, after = reason.partition(word)
            reason = before + "FOLDER" + after[len(after.split()[0].rstrip(";,.")) :]
    return reason


if __name__ == "__main__":
    run_program(main)
