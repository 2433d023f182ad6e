"""Take the first steps of a run and write what each of them read and computed,
for a diagnosis; `shardlab launch` starts it on each rank. Of a script, it copies
what its training wrote.
"""

import argparse
import json
from pathlib import Path

from shardlab.files import write_text
from shardlab.records import metrics
from shardlab.records.script_lines import parse
from shardlab.runs import script_place
from shardlab.runtime import distributed
from shardlab.settings.types import read_run


def main() -> None:
    """Read the frozen settings, take the steps, write the capture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="initial weights")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    from shardlab.train.capture import capture, settings  # imports take seconds

    run = read_run(args.settings)
    if run.script:
        script_place.copy_dumps(args.settings.parent, args.output, run.script)
        _add_reported(args.settings.parent / script_place.OUTPUT / metrics.NAME, args.output)
        return
    run = settings(run)
    distributed.start(run.site, run.site.hang_seconds)
    capture(run, args.data, args.weights, args.output)
    distributed.finish()


def _add_reported(lines: Path, dumps: Path) -> None:
    """Add the losses that a script reports to what it dumped of its steps."""
    texts = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
    reported = {line.step: line.loss for line in (parse(text, str(lines)) for text in texts if text.strip())}
    for path in dumps.glob("step-*.json"):
        step = int(path.stem.removeprefix("step-"))
        if step in reported:
            shown = json.loads(path.read_text(encoding="utf-8"))
            write_text(path, json.dumps(shown | {"reported_loss": reported[step]}))
