"""Resolve one run: check the configuration, and print or write its complete settings, as the workflow does.

A plan.json next to the output decides how much a run with activation_checkpointing: auto recomputes, and whether a run
fits.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.files import write_json
from shardlab.records import plan
from shardlab.settings import load, resolve
from shardlab.settings.config import Config
from shardlab.settings.types import sealed


@program
def main(
    config: Config,
    strategy: str,
    workload: str,
    output: Annotated[Path | None, "run.json to write; without it, print it"] = None,
) -> None:
    """Resolve and write."""
    run, made = resolve.run(config, strategy, workload), None
    if output:
        path = output.with_name(plan.FILE)
        auto = run.recipe.activation_checkpointing == "auto"
        made = plan.read(path, run) if auto else plan.find(run, path)
    hardware, refuse = load.site(config).hardware, config.on_memory_overflow == "refuse"
    frozen, note = plan.freeze(run, made, hardware, refuse=refuse)
    if note:
        print(note, file=sys.stderr)
    if output:
        write_json(output, sealed(frozen))
    else:
        print(json.dumps(sealed(frozen), indent=2))
