"""Each command in each document can be typed: Snakemake finds its targets, a program takes its arguments."""

import json
import re
import shlex
import sys

import pytest
import yaml

from helpers import typed
from helpers.common import ROOT
from helpers.documents import section

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += [ROOT / "config/README.md", ROOT / "results/README.md"]
FILLED = {"NAME": "test", "STRATEGY": "ddp", "WORKLOAD": "llama2", "N": "1", "--profile ...": "--profile slurm"}
FILLED |= {"ngram": "llama2"}
"""Values for words that the reader fills in, and for the reader's own workload."""
MATRIX = {"workloads": ["mlp"], "strategies": ["single", "ddp"]}
"""Of commands that name none: tests/workflow/test_workflow.py lists the jobs of the default matrix."""
SMALLER = {"$(seq -s, 1000)": "1, 2"}
"""A sweep of 1,000 seeds takes a minute to look at."""
FOLLOWED = {"docs/your-own.md": "An example, word for word", "docs/developing.md": "Extend"}
"""Section whose blocks test_documents.py follows to the letter: their commands need the files they write."""
ELSEWHERE = {
    ("python", "tests/mutants"): "tests/unit/test_mutants.py starts it",
    ("python", "-m"): "pytest, which runs this",
    ("python", "-c"): "tests/workflow/test_course.py runs it",
}
OTHERS = {"cat", "cd", "chgrp", "chmod", "diff", "find", "git", "grep", "head", "kill", "sbatch", "scontrol", "source"}
OTHERS |= {"pip", "podman-hpc", "rsync", "ssh", "tail", "torchrun", "true", "umask", "until", "watch"}
"""Not the project's own."""


@pytest.fixture(scope="module")
def shown():
    """(document, command) of all documents, each command once."""
    found = {}
    for path in DOCUMENTS:
        name = str(path.relative_to(ROOT))
        text = path.read_text()
        if name in FOLLOWED:
            followed = section(path, FOLLOWED[name])
            assert followed
            text = text.replace(followed, re.sub(r"^```.*?^```", "", followed, flags=re.MULTILINE | re.DOTALL))
        for command in typed.commands(text):
            for old, new in (FILLED | SMALLER).items():
                command = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, command)
            found.setdefault(tuple(typed.words_of(command)), name)
    return [(name, [*words]) for words, name in found.items() if words[:2] not in ELSEWHERE]


@pytest.mark.parametrize("program", ["python", pytest.param("snakemake", marks=pytest.mark.long)])
def test_each_command_of_the_documents_is_taken(tree, shown, program):
    tried = [(name, words) for name, words in shown if words[0] == program]
    others = {words[0] for _, words in shown} - {"snakemake", "python", "make"}
    assert others <= OTHERS
    assert len(tried) >= 19, "the documents' commands are found"
    tree.run(sys.executable, "scripts/course.py")  # writes the exercises
    config = tree.path / "config/config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | MATRIX))
    requested = json.dumps([words for _, words in tried])
    said = tree.run(sys.executable, str(ROOT / "tests/helpers/typed.py"), requested)
    found = zip(tried, json.loads(said.stdout.splitlines()[-1]), strict=True)
    wrong = [f"{name}: {shlex.join(words)}\n{error}" for (name, words), error in found if error]
    assert not wrong, "\n\n".join(wrong)


def test_each_target_of_make_in_the_documents_exists(tree, shown):
    targets = {word for _, words in shown if words[0] == "make" for word in words[1:]}
    assert len(targets) > 15
    tree.run("make", "--dry-run", *sorted(targets))
