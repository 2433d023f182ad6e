"""Resolve one run: check the configuration, and print or write its complete settings, as the workflow does."""

import json
from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.files import write_json
from shardlab.settings import resolve
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
    run = sealed(resolve.run(config, strategy, workload))
    if output:
        write_json(output, run)
    else:
        print(json.dumps(run, indent=2))
