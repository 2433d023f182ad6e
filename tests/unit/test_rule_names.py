"""Names of rules that are written as strings outside of the rules: one that no rule has is never matched."""

import ast
import re
from typing import get_args

import pytest
import yaml

from shardlab.files import ROOT
from shardlab.runs import stages
from shardlab.settings import sites

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
