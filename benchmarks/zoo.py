#!/usr/bin/env python3
"""Prove strategies on every decoder type of the installed transformers library.

A published configuration of each type (benchmarks/configurations.yaml), or else
its class's default, is made tiny (shardlab/proof), and a step under each
strategy compared with one process, in float64. Prints a line per type, writes
all proofs as JSON lines and, of a whole round, the table in docs/evidence.md.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from docs import fill
from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, write_text
from shardlab.proof import tiny_config
from shardlab.proof.prove import Proof, prove
from shardlab.proof.warm_ranks import import_for_ranks

STRATEGIES = (
    *("ddp", "fsdp", "fsdp_size", "mp", "pp", "pp_zbv", "tp", "tp_sp"),
    *("cp", "cp_ulysses", "cp_ring", "ep", "fsdp_tp", "fsdp_pp", "fsdp_ep"),
)
"""Columns: every axis, the schedules that differ in mechanism, the pairs of axes."""
PAGE = ROOT / "docs/evidence.md"
CONFIGURATIONS = ROOT / "benchmarks/configurations.yaml"
INCOMPLETE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
    "qwen4_exp_text": {"heads_per_ngram": 2, "ngram_vocab_size_base": 128, "split_ngram_parts": 2},
}
"""Type of model: what its class has no default for."""
SIGNS = {"equal": "=", "differs": "≠", "refused": "·", "failed": "!"}
NOT_EQUAL = ("refused", "differs", "failed")
"""Columns of the table."""


def main() -> None:
    """Prove, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types (default: all decoders)")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--at-once", type=int, default=2, help="types at a time")
    parser.add_argument("--output", type=Path, default=ROOT / "results/benchmarks/zoo.jsonl")
    args = parser.parse_args()
    started = time.monotonic()
    import_for_ranks()
    torch.set_num_threads(1)  # each of several ranks at once
    kinds = args.types or decoders()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w") as file:
        for row in rows(kinds, args.strategies, args.at_once):
            print(json.dumps(row), file=file, flush=True)
            print(text(row), flush=True)
    print(f"{len(kinds)} types in {(time.monotonic() - started) / 60:.1f} minutes")
    if not args.types:
        write_text(PAGE, fill(PAGE, {"models": table(read(args.output))}))


def decoders() -> list[str]:
    """Return the library's types of causal language models, some in two configurations: not encoders, and not what
    reads more than tokens.
    """
    from transformers.models.auto import modeling_auto as auto

    others = [
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
        auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    ]
    types = {*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}.difference(*others)
    return sorted(types | {name for name in published() if name.partition("@")[0] in types})


@cache
def published() -> dict[str, dict[str, Any]]:
    """Return {type: {name, keys}} of published configurations, also of a type's second one (type@word); keys: what is
    not its class's default.
    """
    found: dict[str, dict[str, Any]] = yaml.safe_load(CONFIGURATIONS.read_text())
    return found


def configuration(kind: str) -> Any:
    """Return the configuration of a type of model: a published one, or else its class's default.

    Raises:
        UserError: the class does not take it.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    keys = published().get(kind, {}).get("keys") or INCOMPLETE.get(kind, {})
    try:
        return CONFIG_MAPPING[kind.partition("@")[0]](**keys)
    except Exception as error:
        raise UserError(f"{kind}: its class takes no such configuration: {' '.join(str(error).split())}.") from error


def rows(kinds: list[str], strategies: list[str], at_once: int) -> Iterator[dict[str, Any]]:
    """Yield {type, seconds, error or proofs} of each type under its strategies, each from a fork of this process."""
    context = multiprocessing.get_context("fork")
    waiting = [*kinds]
    running: dict[Any, tuple[Any, str]] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
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
            config = configuration(kind)
            try:
                tiny = tiny_config.tiny(config)
            except UserError:  # the defaults of some classes lack sizes
                tiny = tiny_config.tiny(config, fill=True)
            tiny.save_pretrained(folder)
            row["proofs"] = [each._asdict() for each in prove(Path(folder), dict.fromkeys(strategies))]
    except UserError as error:
        row["error"] = str(error)
    connection.send(row | {"seconds": time.monotonic() - started})


def text(row: dict[str, Any]) -> str:
    """Format a row for the terminal."""
    if "error" in row:
        return f"{row['type']:<24}{row['seconds']:>6.1f} s  {row['error'][:200]}"
    cells = [f"{proof['strategy']}{SIGNS[proof['verdict']]}" for proof in row["proofs"]]
    return f"{row['type']:<24}{row['seconds']:>6.1f} s  {' '.join(cells)}"


def read(path: Path) -> dict[str, dict[str, Proof]]:
    """Read {type: {strategy: proof}}; of a type without a tiny model, the reason under no strategy."""
    found: dict[str, dict[str, Proof]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        if "error" in row:
            found[row["type"]] = {"": Proof("", "failed", row["error"])}
        else:
            found[row["type"]] = {each["strategy"]: Proof(**each) for each in row["proofs"]}
    return dict(sorted(found.items()))


def table(found: dict[str, dict[str, Proof]]) -> str:
    """Format a Markdown table: types of models whose strategies have the same outcomes."""
    import transformers

    proofs = {kind: of_kind for kind, of_kind in found.items() if "" not in of_kind}
    names = [name for name in STRATEGIES if any(name in of_kind for of_kind in proofs.values())]
    count = sum(len(of_kind) for of_kind in proofs.values())
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for kind, of_kind in proofs.items():
        sets = ([f"`{n}`" for n in names if n in of_kind and of_kind[n].verdict == verdict] for verdict in NOT_EQUAL)
        alike[tuple(map(" ".join, sets))].append(kind)
    lines = [
        f"transformers {transformers.__version__}, PyTorch {torch.__version__.partition('+')[0]}: "
        f"{len({kind.partition('@')[0] for kind in proofs})} types, {len(proofs)} configurations, {count} proofs, of "
        f"{' '.join(f'`{name}`' for name in names)}. What a row does not name is equal.",
        "",
        f"| types | {' | '.join(NOT_EQUAL)} |",
        "| --- |" + " --- |" * len(NOT_EQUAL),
    ]
    ordered = sorted(alike.items(), key=lambda each: (-len(each[1]), each[1]))
    lines += [f"| {' '.join(kinds)} | {' | '.join(outcomes)} |" for outcomes, kinds in ordered]
    if left := [kind for kind, of_kind in found.items() if "" in of_kind]:
        lines += ["", f"Without a tiny model, so without proofs: {' '.join(left)}."]
    return "\n".join(lines)


if __name__ == "__main__":
    run_program(main)
