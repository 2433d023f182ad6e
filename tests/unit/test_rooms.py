"""The rooms of scripts/shardlab: which may import which, or torch; patches fit the versions that are pinned."""

import ast
import importlib.metadata
import re
import subprocess
import sys

import pytest

from helpers.common import ROOT
from shardlab.patches import REVIEWED

PACKAGE = ROOT / "scripts/shardlab"
MAY_IMPORT = {
    "ground": set(),
    "patches": {"ground"},
    "settings": {"ground"},
    "data": {"ground", "settings"},
    "records": {"ground", "settings"},
    "report": {"ground", "settings", "records"},
    "runs": {"ground", "patches", "settings", "data", "records"},
    "workflow": {"ground", "patches", "settings", "records", "runs"},
    "models": {"ground", "patches", "settings"},
    "runtime": {"ground", "patches", "settings", "data", "models", "runs"},
    "parallel": {"ground", "patches", "settings", "models", "runtime"},
    "measure": {"ground", "patches", "settings", "data", "models", "records", "runtime", "parallel"},
    "train": {
        *("ground", "patches", "settings", "data", "records", "runs"),
        *("models", "runtime", "parallel", "measure"),
    },
    "plan": {"ground", "patches", "settings", "data", "records", "models", "runtime", "parallel", "measure", "train"},
}
MAY_IMPORT["proof"] = {*MAY_IMPORT["train"], "train"}
MAY_IMPORT["cli"] = {*MAY_IMPORT}
"""Room: the rooms below it. Ground is what lies in no room: errors, files, schema."""
NO_TORCH = ("ground", "patches", "settings", "data", "records", "report", "runs", "workflow")


LOGIN = ["prepare", "image", "launch", "preflight", "report", "status"]
"""Programs of the login node."""


def room(path):
    first = path.relative_to(PACKAGE).parts[0]
    return "cli" if first == "__main__.py" else "ground" if first.endswith(".py") else first


def rooms_of(path):
    """Rooms of the project that a file imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names if name.startswith("shardlab.")]
    return {place if place in MAY_IMPORT else "ground" for _, place, *_ in parts}


def test_arrows_only_run_down():
    wrong = {}
    for path in PACKAGE.rglob("*.py"):
        if more := rooms_of(path) - MAY_IMPORT[room(path)] - {room(path)}:
            wrong[str(path.relative_to(PACKAGE))] = more
    assert wrong == {}


IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch, itself or through others")
"""


def test_rooms_and_programs_of_the_login_node_have_no_torch():
    files = [
        path
        for path in PACKAGE.rglob("*.py")
        if room(path) in NO_TORCH
        and path.name != "__init__.py"
        and not (room(path) == "patches" and path.name.startswith(("torch_", "deepspeed_")))
    ]
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    words = [sys.executable, "-c", IMPORTS, *modules, *(f"shardlab.cli.{name}" for name in LOGIN)]
    done = subprocess.run(words, cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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
