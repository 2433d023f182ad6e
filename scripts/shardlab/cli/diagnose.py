"""Compare a strategy's capture with `single`, which is captured first: where they differ first, and which formula
explains that.

Other trainings are compared by the command traindiff (docs/diagnose.md).
"""

import argparse
import tempfile
from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.settings.types import Run, read_run
from traindiff import command_line
from traindiff.capture_files import Capture, InputError
from traindiff.diagnosis import diagnose
from traindiff.page import markdown
from traindiff.pair import Pair


@program
def main(
    settings: Path,
    like: Annotated[Path, "run.json of the strategy"],
    data: Path,
    weights: Path,
    other: Annotated[Path, "its capture"],
    output: Path,
) -> None:
    """Capture `single` and a twin of it, compare, write the page and print its first sentence."""
    from shardlab.runtime import distributed
    from shardlab.train import capture  # imports take seconds
    from shardlab.train.perturbed import move

    run = read_run(like)
    # In the strategy's arithmetic: DeepSpeed has no float64, and a script has dumped what it trained.
    run = run if run.script else capture.settings(run)
    single = capture.settings(read_run(settings), dtype=run.recipe.dtype)
    distributed.start(single.site)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        place = Path(folder)
        capture.capture(single, data, weights, place / "single", divided_like=run)
        move(single, weights, 0, place / "twin.safetensors")
        capture.capture(single, data, place / "twin.safetensors", place / "twin")
        try:
            found = diagnose(_pair(run, other, place / "single", place / "twin"))
        except InputError as error:
            raise UserError(str(error)) from None
        write_text(output, markdown(found, f"{run.strategy} x {run.workload}"))
        print(found.sentence)


def _pair(run: Run, other: Path, reference: Path, twin: Path) -> Pair:
    """Return what is compared: captures, or a script's dumps with captures."""
    if not run.script:
        return Pair(*(Capture(folder) for folder in (other, reference, twin)))
    ranks = [f"{axis}={degree}" for axis, degree in run.mesh.factors.items()]
    given = argparse.Namespace(other=other, reference=reference, twin=twin, ranks=ranks, dtype=None)
    pair = command_line.pair(argparse.Namespace(**vars(given), rename=[], merge=[], skip=[]))
    # These folders are gone when the page is read.
    names = {str(other): run.strategy, str(reference): "single"}
    for path, name in names.items():
        pair.actual.about["notes"] = [note.replace(path, name) for note in pair.actual.about["notes"]]
    return pair
