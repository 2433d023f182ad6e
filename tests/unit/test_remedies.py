"""Calls of Snakemake in documents, comments and error messages: each is complete, with a profile or cores."""

import ast
import contextlib
import io
import re
import shlex

import pytest
from snakemake import cli

from shardlab.errors import PROFILE, remedy
from shardlab.files import ROOT
from shardlab.workflow import call_checks

CALL = re.compile(r"\bsnakemake (?=-|results/|slurm\b|all\b)(.*)")


def literals(path):
    """Yield the strings of a module, with placeholders as ``slurm``."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "slurm" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield from node.value.splitlines()


def calls():
    """Return {words of a call: the first file with it}. Those of documents: tests/workflow/test_commands.py."""
    found = {}
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        for line in literals(path):
            if match := CALL.search(line):
                words = re.split(r" 2>| \|\| | \(|, and |; |, or write|\.$", match[1])[0].strip()
                found.setdefault(words, path.relative_to(ROOT))
    return found


def refusal(text):
    """Return why Snakemake would not begin this call; None if it would."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            _, args = cli.parse_args(shlex.split(text))
    except (SystemExit, ValueError, cli.CliException) as error:
        return f"{said.getvalue()}{error}"
    if args.lint or args.list_target_rules or args.cores or args.jobs:
        return None
    return "cores have to be specified"


def test_every_call_in_the_messages_is_complete(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = calls()
    assert len(found) > 2
    wrong = {words: (str(path), reason) for words, path in found.items() if (reason := refusal(words))}
    assert wrong == {}
    assert refusal("-f results/plan.md") == "cores have to be specified"


@pytest.mark.parametrize(
    ("environment", "profile"),
    [
        ({}, "workflow/profiles/local"),
        ({"SLURM_JOB_ID": "7"}, "slurm"),
        ({PROFILE: "workflow/profiles/local", "SLURM_JOB_ID": "7"}, "workflow/profiles/local"),
        ({PROFILE: "slurm"}, "slurm"),
    ],
)
def test_a_remedy_has_the_profile_of_the_current_call(monkeypatch, environment, profile):
    for name in (PROFILE, "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = remedy("make it", "results/ddp/mlp/plan.json", "-f")
    words = f"--profile {profile} -f results/ddp/mlp/plan.json"
    assert text == f"make it with: snakemake {words}, and the --config of your call"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--profile", "slurm", "--", "all"], "slurm"),
        (["--profile=workflow/profiles/local", "all"], "workflow/profiles/local"),
        (["--cores", "1", "all"], None),
        (["--profile", "none", "--target-jobs", "train:"], None),
    ],
)
def test_the_profile_of_a_call(arguments, expected):
    assert call_checks.profile(arguments) == expected
