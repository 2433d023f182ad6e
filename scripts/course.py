#!/usr/bin/env python3
"""Write the exercises of docs/course.md into examples/exercises: examples
with holes. A file that is already there is kept.

With --plant, copy the project to exercise/ and put a fault there.
"""

import argparse
import re
import shutil

import yaml

from shardlab.errors import run_program
from shardlab.files import ROOT, write_text

COURSE = yaml.safe_load((ROOT / "scripts/course.yaml").read_text(encoding="utf-8"))
FOLDER = ROOT / "examples/exercises"
COPY = ROOT / "exercise"
COPIED = ("Snakefile", "config", "docs", "envs", "examples", "pyproject.toml", "scripts", "workflow")


def main() -> None:
    """Write the exercises, or plant a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plant", choices=COURSE["faults"], help="number of the fault")
    args = parser.parse_args()
    if args.plant:
        plant(args.plant)
        print(f"{COPY} is a copy of this project with a fault; find it there.")
        return
    for name in COURSE["exercises"]:
        if not (FOLDER / f"{name}.py").exists():
            write_text(FOLDER / f"{name}.py", exercise(name))
            print(f"wrote {FOLDER / name}.py")
    if not (FOLDER / "common.py").is_symlink():
        (FOLDER / "common.py").symlink_to("../common.py")


def exercise(name: str) -> str:
    """Return the text of an exercise: an example with holes."""
    made = COURSE["exercises"][name]
    source = f"examples/{made['example']}.py"
    text = (ROOT / source).read_text(encoding="utf-8").replace(source, f"examples/exercises/{name}.py")
    for change in made["changes"]:
        lines = [f"# {line}" for line in change.get("hint", "").splitlines()]
        hole = f'raise NotImplementedError("{lines[0][2:8].lower()}")' if lines else ""
        new = [*lines, *[change.get("code", hole)] * bool(lines or "code" in change)]
        last = rf"(?:.*\n)*? *{re.escape(change['last'])}" if "last" in change else ""
        place = re.compile(rf"^( *){re.escape(change['first'])}{last}.*\n", re.MULTILINE)
        text = place.sub("".join(f"\\g<1>{line}\n" for line in new), text)
    return text


def plant(number: str) -> None:
    """Copy the project and put a fault into the copy."""
    fault = COURSE["faults"][number]
    others = {path.name for path in ROOT.iterdir()} - {*COPIED}
    shutil.copytree(
        ROOT, COPY, symlinks=True, ignore=lambda place, _: others if place == str(ROOT) else {"__pycache__"}
    )
    text = (ROOT / fault["file"]).read_text(encoding="utf-8")
    write_text(COPY / fault["file"], text.replace(fault["right"], fault["wrong"]))


if __name__ == "__main__":
    run_program(main)
