"""docs/coverage.md: every row of it names a file and a test that exist."""

import re

from helpers.common import ROOT

ROW = re.compile(r"\| (.+?) \| `([\w/.-]+)`.*? \| `([\w/.]+)::(\w+)` \|")


def test_every_row_names_a_file_and_a_test_that_exist():
    lines = (ROOT / "docs/coverage.md").read_text().splitlines()
    rows = [
        line
        for line in lines
        if line.startswith("| ") and not line.startswith(("| ---", "| taught", "| fault", "| site"))
    ]
    assert len(rows) > 45
    for line in rows:
        match = ROW.fullmatch(line)
        assert match, line
        _, file, module, test = match.groups()
        assert (ROOT / file).exists(), line
        assert f"def {test}(" in (ROOT / module).read_text(), line
