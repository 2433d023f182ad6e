"""The diagnosis of a fault: the first steps with it, compared with those of the code without it."""

import subprocess
import sys
from pathlib import Path


def use(copy):
    """Import from a copy of the project, in a fork that has imported nothing of it."""
    folders = "scripts", "tests", "tests/parity"
    sys.path[:0] = [f"{copy}/{folder}" for folder in folders]


def case_of(text):
    """A case of the parity suite: strategy, workload, and optionally a recipe and ranks."""
    from cases import RECIPES, Case
    from test_reference import EVERYTHING
    from test_reference import RECIPES as REFERENCES

    strategy, workload, *more = text.split()
    ranks = next((int(word) for word in more if word.isdigit()), 2)
    recipes = RECIPES | {"reference": EVERYTHING | REFERENCES.get(workload, {})}
    recipe = {key: value for word in more if word in recipes for key, value in recipes[word].items()}
    recipe |= {"gradient_accumulation_steps": 3} if "thrice" in more else {}
    return Case(strategy, workload, (*recipe.items(),), ranks)


def reference_of(text):
    """What a case is compared with: a case of `single`, with the recipe as it is if the case is of `single`."""
    case = case_of(text)
    return case if case.strategy == "single" else case.reference


def capture_references(texts, place):
    """Capture what the cases are compared with, by the code without a fault."""
    from group import Server, reference_captures

    jobs = []
    for text in texts:
        folder = _folder(place, text)
        folder.mkdir(parents=True)
        run = reference_of(text).run()
        jobs += reference_captures(run, case_of(text).run(), place / "data" / run.workload, folder)
    with Server() as server:
        server.work_off(jobs, _folder(place, texts[0]), 1)


def diagnose(text, place, scratch):
    """Capture a case by the code that is imported now, with a fault, and compare it; returns what was found."""
    from group import Server, job

    from helpers.common import save_initial
    from traindiff.capture_files import Capture
    from traindiff.diagnosis import diagnose as compare
    from traindiff.diagnosis import markdown
    from traindiff.pair import Pair

    run, folder = case_of(text).run(), _folder(place, text)
    scratch.mkdir(parents=True)
    save_initial(reference_of(text).run(), scratch / "initial.safetensors")
    with Server() as server:
        data, weights = place / "data" / run.workload, scratch / "initial.safetensors"
        server.work_off([job(run, data, weights, scratch / "actual", capture=True)], scratch, run.world_size)
    found = compare(Pair(*map(Capture, (scratch / "actual", folder / "single", folder / "twin"))))
    causes = [cause.cause for cause in found.causes]
    first = [found.first.step, found.first.kind] if found.first else None
    return {"sentence": found.sentence, "causes": causes, "first": first, "page": markdown(found, text)}


def _folder(place, text):
    return place / text.replace(" ", "-")


def prepare(copy, folder):
    """Write the tiny data sets, in a process that imports nothing of the project into this one."""
    program = "import sys, pathlib, diagnosing as d; d.use(sys.argv[1]); from helpers.common import write_tiny_data; "
    program += "write_tiny_data(pathlib.Path(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", program, copy, folder], cwd=Path(__file__).parent, check=True)
