"""The checks of the course's lessons: what a learner answered, and what the runs of a lesson left."""

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from shardlab.course import exercises, planting
from shardlab.errors import UserError
from shardlab.files import ROOT, read_json
from shardlab.report import summary, verdict
from shardlab.settings import load

ANSWERS = exercises.FOLDER / "answers.yaml"
PREDICTED = 0.05
"""Largest relative difference of a prediction from what was measured."""
CALLS: dict[int, dict[str, Any]] = {
    1: {"workloads": ["mlp"], "strategies": ["single", "example_ddp", "exercise_alone"]},
    2: {
        "workloads": ["mlp"],
        "strategies": ["single", "exercise_ddp", "exercise_fsdp", "exercise_tensor_parallel"],
        "dtype": "float64",
    },
    3: {
        "workloads": ["mlp"],
        "strategies": ["single", "ddp", "fsdp", "tp", "pp"],
        "recipe": {"optimizer": {"name": "adamw", "learning_rate": 0.01}},
    },
    4: {
        "workloads": ["llama2"],
        "strategies": ["single", "pp_gpipe"],
        "sweep": {"n_microbatches": [1, 4, 16]},
        "recipe": {"max_steps": 20},
    },
    5: {
        "workloads": ["moe"],
        "strategies": ["single", "fsdp", "tp_sp", "cp", "ep"],
        "recipe": {"max_steps": 20},
    },
}
"""By lesson: the configuration of its call, over config/config.yaml."""
TARGET = {3: "all", 4: "all"}
"""By lesson: what its call makes, if that is more than the verdict."""
SURVIVOR = Path("fsdp/llama2")
"""The run that lesson 8 kills."""


@dataclass(frozen=True)
class Finding:
    """What the check says of one question."""

    question: str
    right: bool
    sentence: str

    def __str__(self) -> str:
        return f"{'right' if self.right else 'wrong'}  {self.question}: {self.sentence}"


def check(lesson: int, answers: dict[str, Any], results: Path, folder: Path) -> list[Finding]:
    """Return what is right and wrong in a lesson.

    ``answers``: of this lesson. ``folder``: of the copy with a fault.
    """
    return [*LESSONS[lesson](answers, results, folder)]


def read_answers(path: Path, lesson: int) -> dict[str, Any]:
    """Return the answers to a lesson's questions, by question; those that are missing have not been answered yet.

    Raises:
        UserError: the file, or what it has of the lesson, is not as it was handed out.
    """
    answers = load.read_yaml(path).get(f"lesson_{lesson}") or {}
    if not isinstance(answers, dict):
        raise UserError(f"{path}: lesson_{lesson} is {answers}, not questions with answers; write question: answer.")
    return answers


def call(lesson: int) -> str:
    """Return the call of Snakemake that trains a lesson's runs."""
    words = []
    for key, value in {**CALLS[lesson], "noise_floor_runs": 0}.items():
        flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf).splitlines()[0]
        words.append(f"{key}={flow.replace(', ', ',') if isinstance(value, list) else flow}")
    return shlex.join(
        [
            "snakemake",
            "--profile",
            "workflow/profiles/local",
            "--config",
            *words,
            "--",
            TARGET.get(lesson, "results/summary.md"),
        ]
    )


# Answers


def _fixed(answers: dict[str, Any], expected: dict[str, tuple[Any, str]]) -> Iterator[Finding]:
    """Compare answers with what is known; ``expected``: by question the answer (or a tuple of them), and a hint."""
    for question, (right, hint) in expected.items():
        given = answers.get(question)
        if given is None:
            yield Finding(question, False, "not answered yet.")
        elif _same(given, right):
            yield Finding(question, True, f"{_shown(given)}.")
        else:
            yield Finding(question, False, f"not {_shown(given)}. {hint}")


def _same(given: Any, right: Any) -> bool:
    if isinstance(right, tuple):
        return any(_same(given, each) for each in right)
    if isinstance(right, str):
        return _word(given) == _word(right)
    if isinstance(right, float):
        return _number(given) and math.isclose(given, right, rel_tol=0.01)
    return bool(given == right and not isinstance(given, bool))


def _word(text: Any) -> str:
    return str(text).strip().lower().replace("-", "_").replace(" ", "_")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if _number(value) else str(value)


def _predicted(question: str, given: Any, measured: Any, hint: str) -> Finding:
    """Score a prediction by what was measured."""
    if given is None:
        return Finding(question, False, "not predicted yet.")
    if not _number(given):
        return Finding(question, False, f"{given} is no number.")
    difference = verdict.relative(given, measured)
    said = f"{_shown(given)}, measured {_shown(float(measured))}"
    if difference <= PREDICTED:
        return Finding(question, True, f"{said} (up to {PREDICTED:.0%} apart is right).")
    return Finding(question, False, f"{said}, more than {PREDICTED:.0%} apart. {hint}")


# Runs


def _runs(lesson: int, results: Path) -> pd.DataFrame:
    """Return the judged table of a lesson's runs, by strategy."""
    base = load.read_yaml(ROOT / "config/config.yaml")
    recipe = (base.get("recipe") or {}) | CALLS[lesson].get("recipe", {})
    config = load.config({**base, **CALLS[lesson], "recipe": recipe, "noise_floor_runs": 0})
    return summary.judged(config, results)[0].set_index("strategy")


def _unfinished(table: pd.DataFrame, strategy: str, lesson: int) -> str | None:
    """Return why a run cannot be looked at; None if it can."""
    for name in ("single", strategy):
        if (status := table.status[name]) != "done":
            return f"the run of {name} is {status}; run: {call(lesson)}"
    return None


# Lessons


def collectives(answers: dict[str, Any], results: Path, _: Path) -> Iterator[Finding]:
    """Ranks, collectives, and what becomes of a training without any."""
    yield from _fixed(
        answers,
        {
            "world_size": (8, "It is the number of ranks on all nodes together."),
            "local_rank": (2, "Ranks are numbered node by node, local ranks from 0 on each node."),
            "mesh": ([2, 1], "The last axis is the innermost: neighboring ranks differ in it first."),
            "all_reduce": ([4, 6], "Every rank gets the sum of all tensors, element by element."),
            "reduce_scatter": ([6], "Every rank gets its part of the sum: rank 1 the second."),
            "all_gather": ([1, 2, 3, 4], "Every rank gets the parts of all ranks, in their order."),
            "all_to_all": ([1, 3], "Rank i gets part i of every rank's tensor."),
            "ddp_gradients": ("all_reduce", "Every rank has a whole gradient of its samples and needs that of all."),
            "fsdp_weights": ("all_gather", "Every rank has a part of the weights and needs them whole."),
            "fsdp_gradients": ("reduce_scatter", "Every rank needs the sum of all gradients, but only its part of it."),
            "tp_outputs": ("all_reduce", "Every rank has a summand of y = h W2 and needs the sum."),
            "pp_states": ("send", "The states of one stage go to one other rank."),
        },
    )
    table = _runs(1, results)
    for strategy, question in (("example_ddp", "with_averaging"), ("exercise_alone", "without_averaging")):
        if reason := _unfinished(table, strategy, 1):
            yield Finding(question, False, reason)
        else:
            right = (str(table.equality[strategy]), f"See what results/summary.md says of {strategy}.")
            yield from _fixed(answers, {question: right})


def write(answers: dict[str, Any], results: Path, _: Path) -> Iterator[Finding]:
    """Three scripts, judged as strategies."""
    table = _runs(2, results)
    for name in ("ddp", "fsdp", "tensor_parallel"):
        path = exercises.FOLDER / f"{name}.py"
        strategy = f"exercise_{name}"
        if exercises.OPEN in path.read_text(encoding="utf-8"):
            yield Finding(strategy, False, f"{path.relative_to(ROOT)} has a hole, where it says {exercises.OPEN}.")
        elif reason := _unfinished(table, strategy, 2):
            yield Finding(strategy, False, reason)
        elif (equality := table.equality[strategy]) == verdict.EQUAL:
            yield Finding(strategy, True, "it trains the same model as one device.")
        else:
            yield Finding(strategy, False, f"it trains, but the verdict is {equality}; see results/summary.md.")
    hint = "nn.Linear stores W transposed: (outputs, inputs). A column-parallel layer has some of the outputs."
    yield from _fixed(answers, {"tp_hidden_weight": ([2, 6], hint)})


HINTS = {
    "sent": "Count the bytes of each collective by the table of the glossary (float32: 4 bytes).",
    "weights": "Count the fullest rank's numbers, 4 bytes each.",
    "gradients": "There is one per weight that the rank updates.",
    "optimizer": "AdamW keeps two numbers per weight that the rank updates, and a step counter per tensor.",
}
COLUMN = {"sent": "bytes_per_step"}


def predict(answers: dict[str, Any], results: Path, _: Path) -> Iterator[Finding]:
    """Bytes sent and held, predicted before the run."""
    table = _runs(3, results)
    for strategy, quantity in product(table.index.drop("single"), HINTS):
        question = f"{strategy}_{quantity}"
        given = answers.get(question)
        if given is not None and (reason := _unfinished(table, strategy, 3)):
            yield Finding(question, False, reason)
        else:
            measured = table.loc[strategy, COLUMN.get(quantity, f"{quantity}_bytes")]
            yield _predicted(question, given, measured, HINTS[quantity])


def pipelines(answers: dict[str, Any], results: Path, _: Path) -> Iterator[Finding]:
    """The bubble by the number of micro-batches."""
    table = _runs(4, results)
    counts = CALLS[4]["sweep"]["n_microbatches"]
    if reason := next(filter(None, (_unfinished(table, f"pp_gpipe@n_microbatches={n}", 4) for n in counts)), None):
        yield Finding("sweep", False, reason)
        return
    hint = "p stages and m micro-batches: (p - 1) of (m + p - 1) slots are empty."
    yield from _fixed(answers, {f"idle_{n}": (1 / (n + 1), hint) for n in counts})


def parts(answers: dict[str, Any], results: Path, _: Path) -> Iterator[Finding]:
    """Parts of sequences, and experts."""
    yield from _fixed(
        answers,
        {
            "cp_tokens": (32, "cp splits each sequence of 64 tokens over the ranks."),
            "ep_experts": (4, "ep splits the 8 experts of a block over the ranks."),
        },
    )
    table = _runs(5, results)
    names = [name for name in table.index if name != "single"]
    if reason := next(filter(None, (_unfinished(table, name, 5) for name in names)), None):
        yield Finding("runs", False, reason)
        return
    hint = "Which weights are sharded, and which are replicated? The experts have about half of them."
    for name in ("cp", "ep"):
        part = float(table.weights_bytes[name] / table.weights_bytes["single"])
        yield _predicted(f"{name}_weights", answers.get(f"{name}_weights"), part, hint)
    sent = table.bytes_per_step[names].astype(float)
    hint = "See bytes_per_step in results/summary.csv."
    yield from _fixed(answers, {"sends_most": (str(sent.idxmax()), hint), "sends_least": (str(sent.idxmin()), hint)})


def find(answers: dict[str, Any], _: Path, folder: Path) -> Iterator[Finding]:
    """A planted fault: what is wrong, where, and whether it is repaired."""
    number = planting.number_of(folder)
    shown = planting.FAULTS[number - 1]
    page = f"See the page of the diagnosis in {folder}/results/diagnosis, and what it asks to check."
    yield from _fixed(
        answers,
        {
            "strategy": (shown.strategies, f"See {folder}/results/summary.md."),
            "cause": (shown.cause, page),
            "file": (planting.fault(number).file, page),
        },
    )
    if planting.repaired(folder):
        yield Finding("repaired", True, f"the fault is gone from {folder}.")
    else:
        yield Finding("repaired", False, f"the fault is still in {folder}; undo it there.")


def launch(answers: dict[str, Any], _: Path, __: Path) -> Iterator[Finding]:
    """Who starts which process on two nodes."""
    yield from _fixed(
        answers,
        {
            "tasks_with_torchrun": (2, "srun starts one torchrun per node, and each of them starts the node's ranks."),
            "tasks_without_torchrun": (8, "A task is a rank then."),
            "rank": (5, "torchrun numbers the ranks node by node, here 4 per node."),
            "store_on_node": (0, "The endpoint names the job's first node, whose SLURM_NODEID is_host compares."),
            "rdzv_id_differs": ("jobs", "All nodes of a job must agree on it; two jobs must not meet."),
            "master_addr": ("torchrun", "srun.sbatch sets it by hand because that is missing there."),
        },
    )


def survive(answers: dict[str, Any], results: Path, _: Path) -> Iterator[Finding]:
    """A run that was killed, and resumed."""
    folder = results / SURVIVOR
    story = folder / "attempts.json"
    if not folder.with_name(f"{folder.name}.done").exists():
        yield Finding("finished", False, f"{folder}.done is missing; repeat the call that you killed.")
        return
    attempts = read_json(story, "attempts at the run", "train again")["attempts"]
    if len(attempts) < 2 or not attempts[-1]["from_step"]:
        yield Finding("killed", False, f"{story} has no attempt that was killed and resumed; repeat the lesson.")
        return
    report = read_json(folder / "train.json", "report of the run", "train again")
    yield Finding("finished", True, f"attempt {len(attempts)} finished what the others began.")
    yield from _fixed(
        answers,
        {
            "from_step": (attempts[-1]["from_step"], f"See from_step of the last attempt in {story}."),
            "lost_steps": (report["lost_steps"], f"See lost_steps in {folder}/train.json."),
        },
    )


LESSONS: dict[int, Callable[[dict[str, Any], Path, Path], Iterator[Finding]]] = {
    1: collectives,
    2: write,
    3: predict,
    4: pipelines,
    5: parts,
    6: find,
    7: launch,
    8: survive,
}
