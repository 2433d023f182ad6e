"""What a dump has; and that the dump of a training by the real packages of others equals that of a plain loop."""

import json
import re

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.utils import clip_grad_norm_

from helpers.common import ROOT
from traindiff import command_line
from traindiff.dump import dump


@pytest.fixture(scope="module")
def trained(server, tmp_path_factory):
    """A folder with the dumps of plain loops on one rank, and of packages on two."""
    folder = tmp_path_factory.mktemp("trained")
    two = ["ddp", "fsdp2", "transformers", "zero2", "lightning"]
    for trainers, ranks in ((["plain", "plain32"], 1), (two, 2), (["zero3"], 2)):
        program = ROOT / "tests/traindiff/foreign_trainers.py"
        server.run(program, [folder, *trainers], ranks, folder / "log", seconds=300)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "missing"),
    [
        ("ddp", set()),
        ("fsdp2", set()),
        ("lightning", set()),
        ("transformers", set()),
        ("zero2", {"clipped gradient"}),
        ("zero3", {"clipped gradient"}),
    ],
)
def test_another_package_trains_as_a_plain_loop(trainer, missing, trained, capsys):
    reference = trained / ("plain32" if trainer in ("zero2", "zero3") else "plain")
    other = trained / trainer
    status, text = command_line.main([str(other), str(reference)]), capsys.readouterr().out
    assert (status, "**Nothing differs in steps 0-2.**" in text) == (0, True), text
    compared = {row.split("|")[2].strip() for row in text.splitlines() if re.match(r"\| \d \|", row)}
    assert {"gradient", "clipped gradient", "optimizer state", "update"} - missing <= compared, text
    facts = [json.loads((folder / "step-2.json").read_text()) for folder in (reference, other)]
    samples = [sorted(name for rank in each["ids"] for batch in rank for name in batch) for each in facts]
    assert len(set(samples[0])) == 8
    assert samples[0] == samples[1]
    for key in ("loss", "max_grad_norm"):
        assert facts[1][key] == pytest.approx(facts[0][key], rel=1e-5), key


@pytest.mark.parametrize("most", [65_536, 30])
def test_samples_sum_to_the_gradient_and_change_nothing(tmp_path, monkeypatch, most):
    monkeypatch.setattr("traindiff.dump.SAMPLE_VALUES", most)
    dumps = {}
    for name in ("without", "with"):
        model, optimizer, x, y = training()
        with dump(model, tmp_path / name, 2) as dumped:
            for _ in range(2):
                losses = F.cross_entropy(model(x), y, reduction="none") / len(x)
                if name == "with":
                    dumped.samples(losses, targets=torch.ones(6, dtype=torch.long))
                losses.sum().backward()
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        dumps[name] = {path.stem: load_file(path) for path in (tmp_path / name).glob("*.safetensors")}
    samples = dumps["with"].pop("samples-1")
    del dumps["with"]["samples-0"]
    assert dumps["with"].keys() == dumps["without"].keys() >= {"initial", "gradients-1", "clipped-1", "weights-1"}
    for name, tensors in dumps["with"].items():
        assert all(value.equal(dumps["without"][name][key]) for key, value in tensors.items()), name
    gradients = dumps["with"]["gradients-1"]
    for key, value in gradients.items():
        torch.testing.assert_close(samples[key].sum(0), value.flatten()[samples.get(f"{key}//index", slice(None))])
        assert dumps["with"]["clipped-1"][key].norm() < value.norm()
    sizes = [sum(each.numel() for each in gradients.values()), sum(samples[key].shape[1] for key in gradients)]
    assert (sizes[1] == sizes[0]) if most > sizes[0] else (25 <= sizes[1] <= 35)


def training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    return model, torch.optim.AdamW(model.parameters(), 0.01), torch.randn(6, 4).double(), torch.arange(6) % 3


def test_a_step_that_a_grad_scaler_skips_does_not_count_and_gradients_are_unscaled(tmp_path):
    model, optimizer, x, y = training()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    wanted = []
    with dump(model, tmp_path / "dump"):
        for scale in (1.0, float("inf"), 1.0):
            loss = F.cross_entropy(model(x), y) * scale
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if scale == 1:
                wanted.append((loss.item(), model[0].weight.grad.clone()))
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert {path.name for path in (tmp_path / "dump").glob("step-*")} == {"step-0.json", "step-1.json"}
    for step, (loss, gradient) in enumerate(wanted):
        facts = json.loads((tmp_path / f"dump/step-{step}.json").read_text())
        assert (facts["loss"], facts["micro_batches"]) == (pytest.approx(loss), 1)
        written = load_file(tmp_path / f"dump/gradients-{step}.safetensors")["0.weight"]
        torch.testing.assert_close(written, gradient)


def test_a_step_that_only_makes_a_state_does_not_count(tmp_path):
    """PyTorch's own way to resume takes one of a rate of 0."""
    model = nn.Linear(3, 2)
    first = torch.optim.AdamW(model.parameters(), lr=0.1)
    with dump(model, tmp_path / "resumed", steps=3):
        model(torch.ones(4, 3)).sum().backward()
        first.step()
        saved = get_optimizer_state_dict(model, first)
        second = torch.optim.AdamW(model.parameters(), lr=0.1)
        set_optimizer_state_dict(model, second, saved)
        model(torch.ones(4, 3)).sum().backward()
        second.step()
    rates = [json.loads(path.read_text())["groups"][0]["lr"] for path in sorted(tmp_path.glob("resumed/step-*.json"))]
    assert rates == [0.1, 0.1]


def test_two_optimizers_take_one_step(tmp_path):
    model, _, x, y = training()
    optimizers = [torch.optim.SGD(part.parameters(), 0.1, momentum=0.9) for part in (model[0], model[1:])]
    with dump(model, tmp_path / "dump", 2):
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    names = {name for name, _ in model.named_parameters()}
    assert load_file(tmp_path / "dump/gradients-1.safetensors").keys() == names
    assert load_file(tmp_path / "dump/optimizer-1.safetensors").keys() == {f"{name}//momentum_buffer" for name in names}
    assert not (tmp_path / "dump/gradients-2.safetensors").exists()


def test_a_dump_without_gradients_is_refused(tmp_path):
    model, optimizer, *_ = training()
    with pytest.raises(RuntimeError, match="all gradients are None"), dump(model, tmp_path / "dump"):
        optimizer.step()
    dumped = dump(nn.Linear(1, 1), tmp_path / "dump").begin()
    optimizer.step()
    with pytest.raises(RuntimeError, match="no optimizer with parameters of this model"):
        dumped.end()
    assert not (tmp_path / "dump").exists()
