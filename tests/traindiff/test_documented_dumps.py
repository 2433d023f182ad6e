"""The blocks of docs/diagnose.md are run: a plain PyTorch loop, also under FSDP2, and one with single samples."""

import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from helpers.common import ROOT
from traindiff import command_line

RUN = """
import sys, torch, torch.distributed as dist
from train import train
train("dumps/one")
train("dumps/two", 4)
import reference
model = torch.nn.Linear(2, 2)
batches = [(torch.randn(3, 2), torch.tensor([0, 1, 0]))]
reference.train(model, torch.optim.SGD(model.parameters()), batches, "dumps/samples")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
train("dumps/sharded")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """A folder with the document's files, in which its training has run three times."""
    folder = tmp_path_factory.mktemp("blocks")
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/diagnose.md").read_text(), re.DOTALL):
        (folder / re.match(r"# (\S+)", block)[1]).write_text(block)
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text.replace(" / accumulation\n", "\n"))
    shutil.copy(ROOT / "scripts/traindiff/dump.py", folder)
    subprocess.run([sys.executable, "-c", RUN, folder / "store"], cwd=folder, check=True)
    return folder


def compared(folder, monkeypatch, capsys, *words):
    monkeypatch.chdir(folder)
    return command_line.main([*words]), capsys.readouterr().out


def test_a_loss_that_is_not_divided_by_its_micro_batches_is_named(blocks, monkeypatch, capsys):
    status, page = compared(blocks, monkeypatch, capsys, "dumps/two", "dumps/one", "--ranks", "micro-batches=4")
    assert status == 1
    quoted = re.findall(r"^> (.+)$", (ROOT / "docs/diagnose.md").read_text(), re.MULTILINE)
    assert len(quoted) == 2
    assert all(sentence in page for sentence in quoted)


def test_fsdp2_on_one_rank_equals_the_plain_loop(blocks, monkeypatch, capsys):
    status, page = compared(blocks, monkeypatch, capsys, "dumps/sharded", "dumps/one")
    assert (status, "**Nothing differs in steps 0-3.**" in page) == (0, True), page


def test_the_reference_writes_gradients_of_single_samples(blocks):
    samples = load_file(blocks / "dumps/samples/samples-0.safetensors")
    for name, value in load_file(blocks / "dumps/samples/gradients-0.safetensors").items():
        torch.testing.assert_close(samples[name].sum(0), value.flatten())
