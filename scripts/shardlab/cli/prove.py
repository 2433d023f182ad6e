"""Prove on a tiny model which strategies may train a workload of transformers (see check-model).

Writes the table, and proofs.json next to it. A strategy that is refused there is not trained.
"""

from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.files import read_json
from shardlab.models import _transformers
from shardlab.proof import of_workload, proof_table, tiny_config
from shardlab.settings import pretrained
from shardlab.settings.types import read_run


@program
def main(settings: Path, strategies: Annotated[Path, "JSON file of what may train it"], output: Path) -> None:
    """Prove, print and write."""
    run = read_run(settings)
    listed = read_json(strategies, "strategies to prove", "run the workflow, which writes it")
    parts = max((each["tensor_parts"] for each in listed.values()), default=1)
    proofs = of_workload.check(run, listed, output.with_name(pretrained.PROOFS), parts)
    folder, changes = str(run.model.folder), run.model.args
    config, _ = _transformers.configuration(folder, changes)
    unread = _transformers.unread(run.task, folder, changes)
    above = tiny_config.about(config, of_workload.longest(run), unread) if any(p.trained for p in proofs) else []
    above.append(proof_table.HEAD)
    table = "\n".join([*above, *map(proof_table.line, proofs), "", *proof_table.summary(proofs)])
    print(table)
    output.write_text(f"{table}\n", encoding="utf-8")
