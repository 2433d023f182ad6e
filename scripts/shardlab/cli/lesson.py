"""Check what you did in a lesson of docs/course.md: one sentence per question,
and a status other than 0 if one of them is wrong.

Lesson 6 needs a copy of the project with a fault: shardlab lesson 6 --plant 1
"""

import argparse
from pathlib import Path

from shardlab.course import lessons, planting
from shardlab.errors import UserError
from shardlab.settings import load


def main() -> int:
    """Check a lesson, or plant or reveal a fault; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, choices=lessons.LESSONS, help="number of the lesson")
    parser.add_argument("--answers", type=Path, default=lessons.ANSWERS, help="your answers (examples/exercises)")
    load.add_results_argument(parser)
    only = parser.add_argument_group("lesson 6")
    only.add_argument(
        "--plant", type=int, metavar="N", help=f"copy the project with fault N, 1 to {len(planting.FAULTS)}"
    )
    only.add_argument("--reveal", action="store_true", help="say which fault was planted")
    only.add_argument("--folder", type=Path, default=Path("exercise"), help="folder of the copy (exercise)")
    args = parser.parse_args()
    if (args.plant is not None or args.reveal) and args.number != 6:
        raise UserError("--plant and --reveal belong to lesson 6; run: shardlab lesson 6 --plant 1.")
    if args.plant is not None:
        planting.plant(args.plant, args.folder)
        print(f"{args.folder} is a copy of this project with a fault; find it there.")
        return 0
    if args.reveal:
        planted = planting.fault(planting.number_of(args.folder))
        print(f"{planted.name}: {planted.file} had\n\n{planted.right}\n\nand has\n\n{planted.wrong}")
        return 0
    findings = lessons.check(args.number, lessons.read_answers(args.answers, args.number), args.results, args.folder)
    for finding in findings:
        print(finding)
    wrong = sum(not finding.right for finding in findings)
    print(f"{len(findings) - wrong} of {len(findings)} are right." if wrong else f"All {len(findings)} are right.")
    return bool(wrong)
