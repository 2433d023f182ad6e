"""The command: its options, and what can be compared."""

import argparse
import re
import sys
from pathlib import Path

from traindiff.capture_files import KINDS, NAME, Capture, InputError
from traindiff.diagnosis import diagnose, markdown
from traindiff.fit import ranges
from traindiff.pair import NUMBERS, Pair
from traindiff.read_dumps import ENDING, Dump, Rules

LABELS = {"clipped": "clipped gradients", "optimizer": "optimizer states", "initial": "initial weights"}
"""Names of the kinds of files in sentences, where they differ from those of the files."""
EXAMPLES = {"rename": "'^module\\.='", "merge": "'.*up\\.weight=0'"}
"""Options that are a rule with a '='."""


def main(words: list[str] | None = None) -> int:
    """Compare the dumps that the command line names, and print the page; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="traindiff",
        description="Find where two trainings that should be equal differ first, and which formula explains that.",
        epilog="Exit status: 0 if nothing differs, 1 if something does, 2 after an error.",
    )
    parser.add_argument("other", metavar="OTHER", type=Path, help="folder of the training in question")
    parser.add_argument("reference", metavar="REFERENCE", type=Path, help="folder of the training that is right")
    add_options(parser)
    args = parser.parse_args(words)
    try:
        found = diagnose(pair(args))
        page = markdown(found, f"{args.other} against {args.reference}")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page)
    return int(found.first is not None)


def add_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that say how dumps are read."""
    for name, shown, text in (
        ("rename", "PATTERN=NAME", "turn names of OTHER into those of REFERENCE (re.sub), in this order"),
        ("merge", "PATTERN=DIM", "join the files' parts of these tensors along a dimension, in the order of the ranks"),
        ("skip", "PATTERN", "leave these tensors out"),
    ):
        parser.add_argument(f"--{name}", action="append", default=[], metavar=shown, help=f"{text}; repeatable")
    parser.add_argument("--dtype", choices=[*NUMBERS], help="coarsest arithmetic, if files are in a finer dtype")


def pair(args: argparse.Namespace) -> Pair:
    """Return the dumps that the options name, with sentences about what is compared in ``about["notes"]``.

    Raises:
        InputError: an option is wrong, or a folder or file cannot be read.
    """
    merge = [(pattern, int(dim)) for pattern, dim in (_rule("merge", rule) for rule in args.merge)]
    skip = [_rule("skip", rule)[0] for rule in args.skip]
    actual = _read(args.other, Rules([_rule("rename", rule) for rule in args.rename], merge, skip))
    reference = _read(args.reference, Rules([], merge, skip))
    if args.dtype:
        actual.about["dtype"] = args.dtype
    found = Pair(actual, reference)
    actual.about["notes"] = _notes(found)
    return found


def _rule(option: str, rule: str) -> tuple[str, str]:
    """Return the regular expression of an option, and what follows its last '='."""
    pattern, equals, value = (rule, "=", "") if option == "skip" else rule.rpartition("=")
    if not equals or (option == "merge" and not value.isdigit()):
        raise InputError(f"--{option} {rule}: write it like this: --{option} {EXAMPLES[option]}.")
    try:
        re.sub(pattern, value if option == "rename" else "", "")
    except (re.error, IndexError) as error:
        raise InputError(f"--{option} '{rule}' is not a regular expression ({error}).") from None
    return pattern, value


def _read(source: Path, rules: Rules) -> Capture:
    """Return a dump, or a capture with a capture.json."""
    if (source / NAME).exists():
        return Capture(source)
    if not source.exists():
        raise InputError(f"{source} does not exist.")
    files = [path for path in source.rglob(f"*{ENDING}") if path.is_file()]
    if not files:
        raise InputError(
            f"{source} has no {ENDING} files, which traindiff.dump writes; of another format, load the tensors and "
            "write them by name: safetensors.torch.save_file({name: value.clone() for name, value in tensors.items()}, "
            f"'weights-N{ENDING}')."
        )
    return Dump(source, files, rules)


def _notes(pair: Pair) -> list[str]:
    """Return what a reader has to know about what is compared."""
    captures = pair.captures
    notes = []
    for capture, other in (captures, captures[::-1]):
        more = [step for step in capture.steps if step not in other.steps]
        if more:
            notes.append(
                f"Steps {ranges(more)} are only in `{capture.folder}` and not compared; both must number steps from 0."
            )
    found = {kind: [_has(capture, kind) for capture in captures] for kind in (*KINDS, "initial")}
    for kind, (own, usual) in found.items():
        if own != usual:
            notes.append(f"Only `{captures[usual].folder}` has {LABELS.get(kind, kind)}; they are not compared.")
    return notes


def _has(capture: Capture, kind: str) -> bool:
    names = [kind] if kind == "initial" else [f"step{step}/{kind}" for step in capture.steps]
    return any(capture.tensors(name).names for name in names)
