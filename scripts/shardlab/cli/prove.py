"""Prove on a tiny model which strategies may train a workload of transformers (see check-model).

Writes the table, and proofs.json next to it. A strategy that is refused there is not trained.
"""

import argparse
from pathlib import Path

from shardlab.files import read_json
from shardlab.models import _transformers
from shardlab.proof import of_workload, proof_table, tiny_config
from shardlab.settings import proven
from shardlab.settings.types import read_run


def main() -> None:
    """Prove, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the workload's initial weights")
    parser.add_argument("--strategies", type=Path, required=True, help="JSON file of what may train it")
    parser.add_argument("--output", type=Path, required=True, help="table to write")
    args = parser.parse_args()
    run = read_run(args.settings)
    strategies = read_json(args.strategies, "strategies to prove", "run the workflow, which writes it")
    parts = max((each["tensor_parts"] for each in strategies.values()), default=1)
    proofs = of_workload.check(run, strategies, args.output.with_name(proven.FILE), parts)
    folder, changes = str(run.model.folder), run.model.args
    config, _ = _transformers.configuration(folder, changes)
    unread = _transformers.unread(run.task, folder, changes)
    above = tiny_config.about(config, of_workload.longest(run), unread) if any(p.trained for p in proofs) else []
    above.append(proof_table.HEAD)
    table = "\n".join([*above, *map(proof_table.line, proofs), "", *proof_table.summary(proofs)])
    print(table)
    args.output.write_text(f"{table}\n", encoding="utf-8")
