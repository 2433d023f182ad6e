"""Check what you did in a lesson of docs/course.md: one sentence per question,
and a status other than 0 if one of them is wrong. The first call writes the
exercises and the file of your answers into examples/exercises.

Lesson 6 needs a copy of the project with a fault: shardlab lesson 6 --plant 1
"""

import argparse
from pathlib import Path

from shardlab.course import exercises, lessons
from shardlab.settings import load

COPY = Path("exercise")


def main() -> int:
    """Check a lesson, or plant or reveal a fault; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, choices=range(1, 9), help="number of the lesson")
    load.add_results_argument(parser)
    parser.add_argument("--plant", type=int, choices=range(1, 7), help="copy the project with this fault to exercise/")
    parser.add_argument("--reveal", action="store_true", help="say which fault was planted")
    args = parser.parse_args()
    exercises.write_missing()
    if args.plant:
        exercises.plant(args.plant, COPY)
        print(f"{COPY} is a copy of this project with a fault; find it there.")
        return 0
    if args.reveal:
        fault = exercises.planted(COPY)
        print(f"{fault['file']} had\n\n{fault['right']}\n\nand has\n\n{fault['wrong']}")
        return 0
    answers = load.read_yaml(exercises.FOLDER / "answers.yaml").get(f"lesson_{args.number}") or {}
    findings = [*lessons.check(args.number, answers, args.results, COPY)]
    for question, right, sentence in findings:
        print(f"{'right' if right else 'wrong'}  {question}: {sentence}")
    number = sum(right for _, right, _ in findings)
    print(f"{'All' if number == len(findings) else f'{number} of'} {len(findings)} are right.")
    return int(number < len(findings))
