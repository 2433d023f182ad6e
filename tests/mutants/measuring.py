"""Trainings with a fault in each precision, beside those of one device and its twins: what a verdict judges.

Files of a reference, `place/REFERENCE-PRECISION/`: data, initial, single, twin0 ..., and a folder per training with a
fault, as benchmarks/trainers/judged.py takes them.
"""

from dataclasses import replace

from diagnosing import case_of, reference_of

PRECISIONS = ("float32", "bf16", "float64")
STEPS = 12
"""Of a training; the recipes of the plain loop's reference have steps of their own."""
TWINS = 6
STOPPED = "stopped.txt"
"""Sentence or last error of a training that did not end."""


def run_of(case, text, precision):
    """The run of a case, or of its reference, as ``text`` asks for it, in a precision."""
    recipe = dict(case.recipe) | ({} if "reference" in text else {"max_steps": STEPS, "epochs": STEPS})
    recipe |= {"precision": "bf16"} if precision == "bf16" else {}
    if "adapted" in text:  # a rate for four steps
        recipe["optimizer"] = recipe["optimizer"] | {"learning_rate": 0.03}
    dtype = "float64" if precision == "float64" else "float32"
    return replace(case, recipe=tuple(recipe.items()), dtype=dtype).run()


def single_of(text, precision):
    """The run on one device that a case is compared with."""
    return run_of(reference_of(text), text, precision)


def folder_of(text, precision, place):
    """The folder of a case's reference."""
    strategy, *words = text.split()
    of_itself = ["itself"] if strategy == "single" else []
    return place / "-".join([*(word for word in words if not word.isdigit()), *of_itself, precision])


def twins(single, place, number):
    """The twins of ``single``: name, run and initial weights; in low precision also ``single`` in full."""
    from shardlab.train.perturbed import move

    found = {}
    for draw in range(number):
        found[f"twin{draw}"] = single, place / f"initial{draw}"
        move(single, place / "initial", draw, place / f"initial{draw}")
    if number and single.recipe.precision != "full":
        recipe = single.recipe.model_copy(update={"precision": "full"})
        found["twin in full precision"] = single.model_copy(update={"recipe": recipe}), place / "initial"
    return found


def train_references(texts, place):
    """Train what the cases are compared with, and twins, by the code without a fault."""
    from group import Server, job

    from helpers.common import save_initial

    jobs = {}
    for precision in PRECISIONS:
        for text in texts:
            folder = folder_of(text, precision, place)
            if folder.exists():
                continue
            run = single_of(text, precision)
            folder.mkdir(parents=True)
            (folder / "data").symlink_to(place / "data" / run.workload)
            save_initial(run, folder / "initial")
            trainings = {"single": (run, folder / "initial")}
            trainings |= twins(run, folder, 0 if precision == "float64" else TWINS)
            for name, (training, initial) in trainings.items():
                jobs[folder / name] = job(training, folder / "data", initial, folder / name)
    with Server() as server:
        server.work_off([*jobs.values()], next(iter(jobs)).parent, 1)


def train(text, name, place):
    """Train a case in each precision by the code that is imported now, into a folder of that name."""
    from group import Server, job

    from shardlab.errors import UserError

    with Server() as server:
        for precision in PRECISIONS:
            run, folder = run_of(case_of(text), text, precision), folder_of(text, precision, place)
            whole = job(run, folder / "data", folder / "initial", folder / name)
            try:
                if "resumed" in text:
                    half = run.recipe.model_copy(update={"max_steps": 2, "checkpoint_interval_steps": 2})
                    first = whole | {"run": run.model_copy(update={"recipe": half}).model_dump()}
                    server.work_off([first], folder / name, run.world_size)
                    whole |= {"resume": str(next((folder / name / "checkpoints").iterdir()))}
                server.work_off([whole], folder / name, run.world_size)
            except UserError as error:
                (folder / name / STOPPED).write_text(str(error))
