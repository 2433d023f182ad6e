"""The blocks of the README and of docs/diagnose.md are run: a plain PyTorch loop, and one with single samples."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from helpers.common import ROOT
from helpers.documents import section
from traindiff import command_line
from traindiff.formulas import CHECKS

README = ROOT / "scripts/traindiff/README.md"
RUN = """
import torch, train
import reference
model = torch.nn.Linear(2, 2)
batches = [(torch.randn(3, 2), torch.tensor([0, 1, 0]))]
reference.train(model, torch.optim.SGD(model.parameters()), batches, "dumps/samples")
"""


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """A folder with the documents' files, of which those of plain PyTorch have run."""
    folder = tmp_path_factory.mktemp("blocks")
    for page in (README, ROOT / "docs/diagnose.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            (folder / re.match(r"# (\S+)", block)[1]).write_text(block)
    shutil.copy(ROOT / "scripts/traindiff/dump.py", folder)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    subprocess.run([sys.executable, "-c", RUN], cwd=folder, check=True, env=environment)
    return folder


def compared(folder, monkeypatch, capsys, *words):
    monkeypatch.chdir(folder)
    return command_line.main([*words]), capsys.readouterr().out


def shown(document):
    """The lines of the page in a document, without what rounding leaves, which differs between machines."""
    text = re.search(r"```markdown\n(.*?)```", document.read_text(), re.DOTALL)[1]
    return [line for line in text.splitlines() if line and "leaves 1e-07" not in line]


def test_the_page_of_the_readme_is_what_its_example_prints(blocks, monkeypatch, capsys):
    status, page = compared(blocks, monkeypatch, capsys, "dumps/two", "dumps/one")
    assert status == 1
    assert len(shown(README)) == 9
    assert {*shown(README)} <= {*page.splitlines()}
    assert (blocks / "dumps/samples/samples-0.safetensors").exists()


def test_the_readme_lists_the_causes():
    rows = re.findall(r"^\| .+ \| (.+) \|$", section(README, "What a cause is"), re.MULTILINE)
    assert {cause for row in rows[2:] for cause in row.split(", ")} == {*CHECKS}
