"""The course's commands, and the documentation site."""

import re
import shutil

import pandas as pd
import pytest

from helpers.common import ROOT
from helpers.documents import follow

SHORTER = {
    "max_steps: 20}": "max_steps: 8}",
    '"max_steps": 400': '"max_steps": 100',
    "max_steps: 400": "max_steps: 100",
    ",zero1,zero3,": ",",
    "noise_floor_runs=2": "noise_floor_runs=0",
}
"""What a reader types, and what shows as much of it in less time."""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_course_can_be_worked_through(make_tree, tmp_path):
    """Every command in order, with fewer steps and strategies, and the figures in the answers."""
    tree = make_tree(tmp_path / "course")
    config = tree.path / "config/config.yaml"
    config.write_text(config.read_text().replace("\nrecipe: {}\n", "\nrecipe: {max_steps: 8}\n"))
    text = (ROOT / "docs/course.md").read_text()
    for shown, fewer in SHORTER.items():
        assert shown in text
        text = text.replace(shown, fewer)
    for command in follow(text, tree):
        tree.run("bash", "-c", command, timeout=900)
        if command.startswith("head"):
            first = tree.run("bash", "-c", "grep '\"train\"' results/single/llama2/metrics.jsonl").stdout
            assert float(re.search(r'"loss": ([\d.]+)', first)[1]) == pytest.approx(6.93, abs=0.02)
        if "fsdp,tp,pp" in command:
            of_three = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
        if "[moe]" in command:
            of_five = pd.read_csv(tree.path / "results/summary.csv").set_index("strategy")
    assert of_three.bytes_per_step.fsdp / of_three.bytes_per_step.ddp == pytest.approx(1.2, abs=0.1), "less than 3 / 2"
    assert of_three.weights_bytes.fsdp == of_three.weights_bytes.ddp / 2
    half = pytest.approx(of_three.activations_bytes.single / 2, rel=1e-3)
    assert of_three.activations_bytes.fsdp == of_three.activations_bytes.ddp == half
    sent = of_three.bytes_per_step.drop("single")
    assert (sent.idxmin(), sent.idxmax()) == ("pp", "tp")
    mib = (of_five.bytes_per_step / 2**20).round(2).to_dict()
    assert mib == {"single": 0, "fsdp": 1.91, "tp_sp": 5.14, "cp": 2.41, "ep": pytest.approx(1.70, abs=0.02)}
    assert of_five.weights_bytes.cp == of_five.weights_bytes.fsdp
    assert (of_five.weights_bytes[["ep", "single"]] / 2**20).round(2).tolist() == [1.07, 1.44]
    parts = pd.read_csv(tree.path / "results/microbatch_sweep/llama2.csv")
    assert list(parts.n_microbatches) == [1, 2, 4, 8, 16]
    assert list(parts.idle_planned.round(4)) == [0.5, 0.3333, 0.2, 0.1111, 0.0588]
    assert (parts.step_seconds_median > 0).all()
    assert parts.idle.between(0, 1, inclusive="neither").all()
    assert parts.idle[0] >= 0.5, "with one micro-batch one rank works at a time"
    assert parts.train_loss.max() / parts.train_loss.min() - 1 < 1e-5, "splitting changes no number"
    assert "micro-batches" in (tree.path / "results/microbatch_sweep/llama2.svg").read_text()
    exact = pd.read_csv(tree.path / "results/summary.csv")
    assert exact.rel_diff.max() < 1e-13
    attempts = tree.json("results/zero2/llama2/attempts.json")["attempts"]
    assert attempts[-1]["why"] == "finished"
    assert attempts[-1]["from_step"] == (attempts[-2]["reached"] or 0 if len(attempts) > 1 else 0)


def test_the_site_is_built_and_its_links_lead_somewhere(make_tree, tmp_path):
    make_tree(tmp_path / ".site")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    tree = type(make_tree(tmp_path / "unused"))(tmp_path)
    tree.run("python", ".site/scripts/docs.py", "--site", ".site")
    tree.run("python", "-m", "mkdocs", "build", "--strict")
    assert "there is no finished run to describe" in (tmp_path / "site/docs/messages/index.html").read_text()
    page = (tmp_path / "site/docs/sites/jureca/index.html").read_text()
    assert "NCCL_SOCKET_IFNAME=ib0" in page
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', page), "nothing is loaded from elsewhere"
    (tmp_path / ".site/docs/glossary.md").write_text("[nowhere](nothing.md)\n")
    assert "nothing.md" in tree.run("python", "-m", "mkdocs", "build", "--strict", check=False).stdout
