"""The blocks of the README and of docs/diagnose.md are run: a plain PyTorch loop, and one with single samples."""

import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

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


@pytest.mark.long
def test_the_readme_works_in_an_empty_environment(tmp_path):
    """PyTorch is the one without CUDA in either case: the first line only names where it is."""
    text = README.read_text()
    commands = [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    pytorch = f"pip install torch=={torch.__version__.partition('+')[0]}"
    commands[0] = re.sub(r"pip install torch --index-url \S+", pytorch, commands[0])
    commands[1] = commands[1].replace("./scripts", f"{ROOT}/scripts")
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{tmp_path}/venv/bin:{environment['PATH']}"
    for command in commands[:-1]:
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True)
    done = subprocess.run(
        ["bash", "-c", commands[-1]], cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE
    )
    assert done.returncode == 1
    assert {*shown(README)} <= {*done.stdout.splitlines()}
