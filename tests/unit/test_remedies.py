"""Calls of Snakemake in messages are complete; names of rules that are written as strings exist."""

import ast
import contextlib
import io
import re
import shlex
from typing import get_args

import pytest
import yaml
from snakemake import cli

from shardlab.errors import PROFILE, remedy
from shardlab.files import ROOT
from shardlab.runs import stages
from shardlab.settings import sites

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


RULES = {
    name
    for path in (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk"))
    for name in re.findall(r"^rule (\w+):", path.read_text(), re.MULTILINE)
}


def compared():
    """Return (place, string) of each string in scripts/ that something of a rule is compared with."""
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and re.search(r"\brule(_name)?\b", ast.unparse(node.left)):
                for constant in ast.walk(ast.List(node.comparators, ast.Load())):
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                        yield f"{path.name}:{node.lineno}", constant.value


def in_queries():
    """Return (place, name) of each rule in the comments of Slurm jobs, as the plugin writes them."""
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        for name in re.findall(r"\brule_([a-z_]+)_wildcards", path.read_text()):
            yield path.name, name


def in_profiles():
    """Return (profile, name) of each rule that a profile names."""
    for path in sorted((ROOT / "workflow/profiles").glob("*/config.yaml")):
        profile = yaml.safe_load(path.read_text())
        for name in [*profile.get("preemptible-rules", []), *profile.get("set-resources", {})]:
            yield path.parent.name, name


@pytest.mark.parametrize(
    "named",
    [
        pytest.param([("STAGES", name) for name in stages.STAGES], id="stages"),
        pytest.param([("Stage", name) for name in get_args(sites.Stage)], id="stages of a site"),
        pytest.param([*compared()], id="comparisons"),
        pytest.param([*in_queries()], id="Slurm's comments"),
        pytest.param([*in_profiles()], id="profiles"),
    ],
)
def test_a_rule_of_that_name_exists(named):
    assert named
    assert [(place, name) for place, name in named if name not in RULES] == []
