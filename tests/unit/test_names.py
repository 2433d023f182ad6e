"""Identifiers: a short list of vague words is refused, and former configuration keys name their successors."""

import io
import subprocess
import tokenize

import pytest

from helpers.common import ROOT
from shardlab.schema import RENAMED
from shardlab.settings import config, recipe, sites, types

REFUSED = {
    "afresh": "restart",
    "asked": "requested",
    "begun": "started",
    "behind": "after, deferred",
    "mine": "local, actual",
    "of": "what it returns",
    "theirs": "other, reference",
    "told": "reported, reduced",
}
"""Word: a better one."""
LISTED = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
FOLDERS = sorted({path.rpartition("/")[0] for path in LISTED.split()})


def refused(text):
    """(line, name) of each identifier of a Python file that is on the list."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [
        (token.start[0], token.string) for token in tokens if token.type == tokenize.NAME and token.string in REFUSED
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_identifier_is_on_the_list(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: better {REFUSED[name]}"
        for path in sorted((ROOT / folder).glob("*.py"))
        for line, name in refused(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_list_is_seen():
    assert refused("def of(told):\n    return told\n") == [(1, "of"), (1, "told"), (2, "told")]


def test_a_former_key_is_no_key_and_its_new_name_is_one():
    kinds = [config.Config, recipe.Recipe, sites.Site, sites.ContainerExec, types.StrategyOptions, types.Workload]
    known = {key for kind in kinds for key in kind.model_fields}
    for former, names in RENAMED.items():
        assert former not in known
        assert known.issuperset(names), former
