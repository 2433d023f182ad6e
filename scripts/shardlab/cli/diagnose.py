"""Compare the first steps of two trainings that should be equal: where they
differ first, and which formula explains that.

With --settings, a capture of a strategy with `single`, which is captured first;
the status is 0 if the page was written. With --reference, two dumps of any
trainer, as the command traindiff does (docs/diagnose.md).
"""

import argparse
import tempfile
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.settings.types import Run, read_run
from traindiff import command_line
from traindiff.capture_files import Capture, InputError
from traindiff.diagnosis import diagnose
from traindiff.page import markdown
from traindiff.pair import Pair


def main() -> int:
    """Compare, write the page, print its first sentence; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="folder or file of the training in question")
    parser.add_argument("--reference", type=Path, help="folder or file of the training that is right")
    command_line.add_options(parser.add_argument_group("with --reference"))
    parser.add_argument("--settings", type=Path, help="run.json of `single`, to capture the reference")
    parser.add_argument("--like", type=Path, help="run.json of the strategy")
    parser.add_argument("--data", type=Path, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, help="initial weights")
    parser.add_argument("--output", type=Path, help="page to write (Markdown); without it, print the page")
    args = parser.parse_args()
    if bool(args.reference) == bool(args.settings):
        parser.error("give --reference, a dump of another training, or --settings, run.json of `single`; not both.")
    if args.reference:
        return command_line.run(args)
    with tempfile.TemporaryDirectory(dir=args.output and args.output.parent) as place:
        _compare_with_single(args, Path(place))
    return 0


def _compare_with_single(args: argparse.Namespace, place: Path) -> None:
    """Capture `single` and a twin of it, and compare a strategy's capture with them."""
    missing = [name for name in ("like", "data", "weights") if getattr(args, name) is None]
    if missing:
        raise UserError(f"--settings needs --{missing[0]}, too.")
    from shardlab.runtime import distributed
    from shardlab.train.capture import capture, settings  # imports take seconds
    from shardlab.train.perturbed import move

    like = read_run(args.like)
    # In the strategy's arithmetic: DeepSpeed has no float64, and a script has dumped what it trained.
    like = like if like.script else settings(like)
    run = settings(read_run(args.settings), dtype=like.recipe.dtype)
    distributed.start(run.site)
    capture(run, args.data, args.weights, place / "single", divided_like=like)
    move(run, args.weights, 0, place / "twin.safetensors")
    capture(run, args.data, place / "twin.safetensors", place / "twin")
    try:
        found = diagnose(_pair(like, args.other, place / "single", place / "twin"))
    except InputError as error:
        raise UserError(str(error)) from None
    page = markdown(found, f"{like.strategy} x {like.workload}")
    if args.output:
        write_text(args.output, page)
    print(found.sentence if args.output else page)


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
