"""The blocks of docs/diagnose.md are run: a plain PyTorch loop, also under FSDP2, and the Trainer's callback."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from helpers.common import ROOT
from shardlab.cli import diagnose

RUN = """
import sys, torch, torch.distributed as dist
from train import train
train("dumps/one")
train("dumps/two", 4)
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
    subprocess.run([sys.executable, "-c", RUN, folder / "store"], cwd=folder, check=True)
    return folder


def compared(folder, monkeypatch, capsys, *words):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["shardlab diagnose", "--reference", "dumps/one", *words])
    return diagnose.main(), capsys.readouterr().out


def test_a_loss_that_is_not_divided_by_its_micro_batches_is_named(blocks, monkeypatch, capsys):
    status, page = compared(blocks, monkeypatch, capsys, "--other", "dumps/two", "--ranks", "micro-batches=4")
    assert status == 1
    quoted = re.findall(r"^> (.+)$", (ROOT / "docs/diagnose.md").read_text(), re.MULTILINE)
    assert len(quoted) == 2
    assert all(sentence in page for sentence in quoted)


def test_fsdp2_on_one_rank_equals_the_plain_loop(blocks, monkeypatch, capsys):
    status, page = compared(blocks, monkeypatch, capsys, "--other", "dumps/sharded")
    assert (status, "**Nothing differs in steps 0-3.**" in page) == (0, True), page


def test_the_callback_writes_what_the_loop_writes(blocks, monkeypatch):
    monkeypatch.chdir(blocks)
    monkeypatch.syspath_prepend(str(blocks))
    import torch
    from callback import Dump
    from safetensors.torch import load_file

    model = torch.nn.Linear(2, 2)
    model.tied = model.weight
    model(torch.ones(1, 2)).sum().backward()
    each, args, state = Dump("dumps/called"), SimpleNamespace(max_grad_norm=0), SimpleNamespace(global_step=0)
    each.on_train_begin(args, state, None, model)
    each.on_pre_optimizer_step(args, state, None, model)
    state.global_step = 1
    each.on_step_end(args, state, None, model)
    written = {
        name: load_file(blocks / f"dumps/called/{name}.safetensors") for name in ("initial", "gradients-0", "weights-0")
    }
    assert written["gradients-0"]["weight"].equal(model.weight.grad)
    assert written["initial"].keys() == written["weights-0"].keys() == {"weight", "bias", "tied"}
