"""What a script must leave, and what becomes of it."""

from fault import Fault, S, at

LINES, RANK, PLACE = f"{S}records/script_lines.py", f"{S}runs/script_rank.py", f"{S}runs/script_place.py"
LESSONS = f"{S}course/lessons.py"
REPORT, SCRIPTS, ATTEMPTS = f"{S}train/script_report.py", f"{S}settings/scripts.py", f"{S}runs/attempts.py"


def contract(*tests: str) -> tuple[str, ...]:
    return at("unit/test_script_contract", *tests)


def course(*tests: str) -> tuple[str, ...]:
    return at("unit/test_course_checks", *tests)


NAMED = contract("test_a_line_that_breaks_the_contract_is_named")
WEIGHTS = contract("test_weights_that_break_the_contract_are_named")
KEPT = contract("test_an_attempt_keeps_the_steps_that_it_does_not_take_again")
FILES = contract("test_a_script_is_its_files_and_no_others")

FAULTS = [
    # Its lines.
    Fault(
        "the first attempt of a script has the steps of the training before",
        RANK,
        "if attempt > 1 else []",
        "if attempt > 0 else []",
        KEPT,
    ),
    Fault("a script's earlier steps are lost", RANK, 'or record["step"] < first]', "or False]", KEPT),
    # Its weights.
    Fault(
        "a script may leave out weights",
        REPORT,
        "ours.keys() - theirs.keys()",
        "set()",
        WEIGHTS,
        error=r"^'hidden\.bias'$",
    ),
    Fault("a script may have more weights", REPORT, "theirs.keys() - ours.keys()", "set()", WEIGHTS),
    Fault("a script's weights may have any shape", REPORT, "theirs[name] != ours[name]", "False", WEIGHTS),
    Fault("a script's weights may be NaN", REPORT, "not value.isfinite().all()", "False", WEIGHTS),
    # Its processes.
    Fault(
        "a script is not asked to stop",
        RANK,
        "if not asked and (asked := _request(folder)):\n                    script.request()",
        "if not asked and (asked := _request(folder)):\n                    pass",
        contract("test_a_request_to_stop_reaches_it_as_sigterm"),
    ),
    Fault(
        "a rank that stopped does not wait for those that save, which srun then ends",
        RANK,
        "if run.script_launcher:",
        "if False:",
        contract("test_a_stopped_rank_of_srun_waits_for_those_that_save"),
    ),
    Fault(
        "a script that finished is stopped",
        RANK,
        "and (status or not written)",
        "",
        contract("test_a_script_that_ends_in_time_is_finished_whatever_was_requested"),
    ),
    Fault(
        "what a script left remains for its next attempt",
        PLACE,
        "if path.name != CHECKPOINTS:",
        "if path.name == DUMPS:",
        contract("test_of_an_attempt_only_checkpoints_remain_for_the_next"),
    ),
    # Its files.
    Fault(
        "what a script imports is no part of it",
        SCRIPTS,
        "waiting += [*_imports(tree, path.parent, top)]",
        "pass",
        FILES,
    ),
    Fault(
        "what a script names is no part of it",
        SCRIPTS,
        "waiting += [path.parent / name, ROOT / name]",
        "pass",
        FILES,
    ),
    Fault(
        "a script may be anywhere",
        SCRIPTS,
        "if not path.resolve().is_relative_to(ROOT)",
        "if False",
        contract("test_what_does_not_fit_a_script_is_refused"),
    ),
    # The course, whose learners write scripts.
    Fault(
        "any prediction is right",
        LESSONS,
        "<= near * abs(right)",
        ">= 0",
        course("test_runs_decide_what_is_right"),
    ),
    Fault(
        "an exercise is right once it has trained",
        LESSONS,
        "not reason and equality == verdict.EQUAL",
        "not reason",
        course("test_runs_decide_what_is_right"),
    ),
    Fault(
        "every copy counts as repaired",
        f"{S}course/exercises.py",
        "return ours == theirs",
        "return True",
        course("test_each_fault_can_be_planted_and_repaired"),
    ),
]
