"""Compare a strategy's capture with `single`, which is captured first: where they differ first, and which formula
explains that.

Other trainings are compared by the command traindiff (docs/diagnose.md).
"""

import argparse
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

from shardlab.cli import program
from shardlab.data import store
from shardlab.data.order import BatchOrder
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.records import metrics
from shardlab.records.script_lines import parse
from shardlab.runs import script_place
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run, read_run
from traindiff import command_line
from traindiff.capture_files import Capture, InputError
from traindiff.diagnosis import diagnose, markdown
from traindiff.pair import Pair


@program
def main(
    settings: Path,
    like: Path,
    data: Path,
    weights: Path,
    other: Path,
    output: Path,
) -> None:
    """Capture `single` and a twin of it, compare, write the page and print its first sentence."""
    from shardlab.runtime import distributed
    from shardlab.train import capture as steps  # imports take seconds
    from shardlab.train.perturbed import move

    run = read_run(like)
    # In the strategy's arithmetic: DeepSpeed has no float64, and a script has dumped what it trained.
    run = run if run.script else steps.settings(run)
    single = steps.settings(read_run(settings), dtype=run.recipe.dtype)
    distributed.start(single.site)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        place = Path(folder)
        steps.capture(single, data, weights, place / "single", divided_like=run)
        move(single, weights, 0, place / "twin.safetensors")
        steps.capture(single, data, place / "twin.safetensors", place / "twin")
        try:
            found = diagnose(_pair(run, other, place / "single", place / "twin"))
        except InputError as error:
            raise UserError(str(error)) from None
        page = markdown(found, f"{run.strategy} x {run.workload}")
        if found.first is None:
            page += _first_unequal_loss(run, like.parent, settings.parent, store.samples_in(data, "train"))
        write_text(output, page)
        print(found.sentence)


def _first_unequal_loss(run: Run, folder: Path, single: Path, samples: int) -> str:
    """Return a sentence on the first step in which the losses that two trainings recorded differ; empty if none does or
    in low precision.
    """
    tolerance = PRECISIONS[run.recipe.arithmetic].tolerance
    if tolerance is None:
        return ""
    both = [{each["step"]: each for each in metrics.read(place / metrics.NAME)} for place in (folder, single)]
    losses = {step: [records[step].get("loss") for records in both] for step in both[0] if step in both[1]}
    unequal = [
        step
        for step, (own, reference) in sorted(losses.items())
        if own and reference and not math.isclose(own, reference, rel_tol=tolerance)
    ]
    if not unequal:
        return ""
    order = BatchOrder(samples, run.recipe.global_batch_size, run.seed)
    epoch, first = divmod(unequal[0], order.steps_per_epoch)
    place = f", the first of epoch {epoch}: are its samples in the common order?" if epoch and not first else "."
    return f"\nThe losses that the trainings recorded first differ in step {unequal[0]}{place}\n"


def _pair(run: Run, other: Path, reference: Path, twin: Path) -> Pair:
    """Return what is compared: captures, or a script's dumps with captures."""
    if not run.script:
        return Pair(*(Capture(folder) for folder in (other, reference, twin)))
    given = argparse.Namespace(other=other, reference=reference, dtype=None, rename=[], merge=[], skip=[])
    pair = replace(command_line.pair(given), twin=Capture(twin))
    pair.actual.about["mesh"] = run.mesh.factors
    # These folders are gone when the page is read.
    names = {str(other): run.strategy, str(reference): "single"}
    for path, name in names.items():
        pair.actual.about["notes"] = [note.replace(path, name) for note in pair.actual.about["notes"]]
    return pair


@program
def capture(settings: Path, data: Path, weights: Path, output: Path) -> None:
    """Take the first steps of a run and write what each of them read and computed, for a diagnosis.

    `shardlab launch` starts it on each rank. Of a script, it copies what its training wrote.
    """
    from shardlab.runtime import distributed
    from shardlab.train import capture as steps  # imports take seconds

    run = read_run(settings)
    if run.script:
        script_place.copy_dumps(settings.parent, output, run.script)
        _add_reported(settings.parent / script_place.OUTPUT / metrics.NAME, output)
        return
    run = steps.settings(run)
    distributed.start(run.site, run.site.hang_seconds)
    steps.capture(run, data, weights, output)
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
