"""Wording of the hand-written documents and of docstrings: phrases that read as translated, and better ones."""

import ast
import re
import subprocess

import pytest

from helpers.common import ROOT

WORDING = {
    r"afresh|anew": "from scratch, again",
    r"so many": "every N, this many",
    r"of (?:its|their|your|our) own": "its own X, separate",
    r"by (?:itself|themselves)": "automatically, separately, independently",
    r"held (?:to|against)": "compared with, checked against",
    r"st(?:ands?|ood) (?:in|there|here|at|beside|between|before|behind)": "is in, is at",
    r"as (?:it|they) stands?": "unchanged, literally",
    r"(?:that|what) (?:is|are|was|were) there": "existing, exists",
    r"(?<!there\s)(?:is|are) no (?!longer\b|more\b)\w+": "is not a",
    r"what goes with what": "compatibility checks",
    r"another \w+ is another \w+": "to add a cluster, add a file",
    r"(?:is|are|was|were) told to": "must, is configured to; or name what happens",
    r"without a word": "without notice, without an error message",
    r"beside": "compared with, next to, in addition to, besides",
    r"behind (?:each|every|that|the|its|it|them|a)": "after",
    r"mends?|mended": "fix",
    r"go(?:es)? on|went on|going on": "resume, continue",
    r"from itself": "rounding noise",
    r"to the (?:last )?bit": "bitwise equal",
    r"for ever": "forever",
    r"rounds? otherwise": "rounds differently",
    r"(?:one|task|call|line) an? (?:rank|node|step|block|token)": "per",
    r"come no further": "make no progress",
    r"what (?:became|came|comes) of": "the state, the result",
    r"for want of": "out of, for lack of",
    r"put to use": "applied",
    r"as against": "as opposed to, compared with",
}
"""Regular expression, as whole words in any case, a space also for a line break: what to write instead."""
CODE = r"^```.*?^```|`[^`]*`"
GENERATED = r"^<!-- (?P<block>[\w ]+) -->.*?^<!-- end (?P=block) -->"
QUOTED = r'"[^"\n]*"|\]\([^)\n]*\)'
"""Messages of programs, and the targets of links."""


def documents():
    """The hand-written documents."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "config/README.md"]
    return [*paths, ROOT / "results/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(text):
    """Markdown without code, generated blocks, quotations and targets of links; every line keeps its number."""
    for pattern in (GENERATED, CODE, QUOTED):
        text = re.sub(pattern, lambda found: re.sub(r"[^\n]", "\0", found[0]), text, flags=re.DOTALL | re.MULTILINE)
    return text


def findings(name, text):
    """One sentence per phrase of the list in a text."""
    found = []
    for phrase, better in WORDING.items():
        pattern = re.compile(r"\b(?:" + phrase.replace(" ", r"\s+") + r")\b", re.IGNORECASE)
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{name}:{line}: '{' '.join(match[0].split())}' reads as translated; better: {better}.")
    return found


LISTED = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
FOLDERS = sorted({path.rpartition("/")[0] for path in LISTED.split()})


def docstrings(text):
    """Docstrings of Python code, also of attributes, without code; every line keeps its number."""
    lines = [""] * text.count("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = node.value.value.split("\n")
    return prose("\n".join(lines))


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_read_as_written_in_english(folder):
    paths = sorted((ROOT / folder).glob("*.py"))
    found = [each for path in paths for each in findings(path.relative_to(ROOT), docstrings(path.read_text()))]
    assert not found, "\n".join(found)


def test_a_phrase_is_found_in_a_docstring_alone():
    code = 'def afresh():\n    """Train\n    afresh."""\n    return "afresh"\n\n\nx = 1\n"""Go on."""\n'
    assert [each.partition(" reads")[0] for each in findings("a.py", docstrings(code))] == [
        "a.py:3: 'afresh'",
        "a.py:8: 'Go on'",
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_read_as_written_in_english(path):
    found = findings(path.relative_to(ROOT), prose(path.read_text()))
    assert not found, "\n".join(found)


def test_a_phrase_is_found_across_lines_and_not_in_code():
    generated = "<!-- keys -->\nafresh\n<!-- end keys -->"
    text = f'A run\nbegins `restart`, by\nitself.\n\n```console\nafresh\n```\n{generated}\nMend "anew".\n'
    found = findings("page.md", prose(text))
    assert [sentence.partition(" reads")[0] for sentence in found] == ["page.md:2: 'by itself'", "page.md:11: 'Mend'"]
