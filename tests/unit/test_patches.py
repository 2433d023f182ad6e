"""Patches of other projects' code: all in one package, each reviewed for the version that is installed and pinned."""

import importlib.metadata
import re

import pytest

from helpers.common import ROOT
from shardlab.patches import REVIEWED


def pinned():
    """Version by package, of all lock files."""
    text = "\n".join(path.read_text() for path in (ROOT / "envs").glob("*.txt"))
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))


@pytest.mark.parametrize("package", REVIEWED)
def test_patches_were_reviewed_for_the_version_that_is_used(package):
    versions = {importlib.metadata.version(package).partition("+")[0], pinned()[package]}
    assert versions == {REVIEWED[package]}, (
        f"review the patches of {package} in scripts/shardlab/patches: remove what its new version does by itself, and "
        "write that version into __init__.py"
    )
