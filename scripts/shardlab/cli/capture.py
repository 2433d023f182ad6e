"""Take the first steps of a run and write what each of them read and computed,
for a diagnosis; `shardlab launch` starts it on each rank. Of a script, it copies
what its training wrote.
"""

import json
from pathlib import Path

from shardlab.cli import program
from shardlab.files import write_text
from shardlab.records import metrics
from shardlab.records.script_lines import parse
from shardlab.runs import script_place
from shardlab.runtime import distributed
from shardlab.settings.types import read_run


@program
def main(settings: Path, data: Path, weights: Path, output: Path) -> None:
    """Read the frozen settings, take the steps, write the capture."""
    from shardlab.train import capture  # imports take seconds

    run = read_run(settings)
    if run.script:
        script_place.copy_dumps(settings.parent, output, run.script)
        _add_reported(settings.parent / script_place.OUTPUT / metrics.NAME, output)
        return
    run = capture.settings(run)
    distributed.start(run.site, run.site.hang_seconds)
    capture.capture(run, data, weights, output)
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
