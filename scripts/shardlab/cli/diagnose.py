"""Compare the first steps of two trainings that should be equal: where they
differ first, how, and what usually causes that.

With --reference, two folders or files of safetensors of any trainer
(docs/diagnose.md); the exit status is that of diff: 0 if nothing differs, 1 if
something does, 2 after an error. With --settings, a capture of a strategy with
`single`, which is captured first; the status is 0 if the page was written.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.settings.types import read_run
from traindiff import trainers
from traindiff.capture_files import Capture, InputError
from traindiff.page import Diagnosis, diagnose, markdown
from traindiff.pair import Pair


def main() -> int:
    """Compare, write the page, print its first sentence; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="folder or file of the training in question")
    parser.add_argument("--reference", type=Path, help="folder or file of the training that is right")
    trainers.add_arguments(parser)
    parser.add_argument("--settings", type=Path, help="run.json of `single`, to capture the reference")
    parser.add_argument("--like", type=Path, help="run.json of the strategy")
    parser.add_argument("--data", type=Path, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, help="initial weights")
    parser.add_argument("--output", type=Path, help="page to write (Markdown); without it, print the page")
    args = parser.parse_args()
    if bool(args.reference) == bool(args.settings):
        parser.error("give --reference, a dump of another training, or --settings, run.json of `single`; not both.")
    if args.settings:
        with tempfile.TemporaryDirectory(dir=args.output and args.output.parent) as place:
            try:
                _show(*of_run(args, Path(place)), args.output)
            except InputError as error:
                raise UserError(str(error)) from None
        return 0
    try:
        found = diagnose(trainers.pair(args))
        _show(found, f"{args.other} against {args.reference}", args.output)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(found.first is not None)


def _show(found: Diagnosis, title: str, output: Path | None) -> None:
    page = markdown(found, title)
    if output:
        write_text(output, page)
    print(found.sentence if output else page)


def of_run(args: argparse.Namespace, place: Path) -> tuple[Diagnosis, str]:
    """Capture `single` and a twin of it, and compare a strategy's capture with them; return also the page's title."""
    missing = [name for name in ("like", "data", "weights") if getattr(args, name) is None]
    if missing:
        raise UserError(f"--settings needs --{missing[0]}, too.")
    from shardlab.runtime import distributed
    from shardlab.train.capture import capture, settings  # imports take seconds
    from shardlab.train.perturbed import move

    like = settings(read_run(args.like))
    # In the strategy's arithmetic: DeepSpeed has no float64.
    run = settings(read_run(args.settings), dtype=like.recipe.dtype)
    distributed.start(run.site.device)
    capture(run, args.data, args.weights, place / "single", divided_like=like)
    move(run, args.weights, 0, place / "twin.safetensors")
    capture(run, args.data, place / "twin.safetensors", place / "twin")
    pair = Pair(*(Capture(folder) for folder in (args.other, place / "single", place / "twin")))
    return diagnose(pair), f"{like.strategy} x {like.workload}"
