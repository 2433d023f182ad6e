"""Twins of a training: initial weights that differ by about one rounding."""

import pytest
import torch
from safetensors.torch import load_file

from helpers.common import save_initial, tiny_run
from shardlab.settings.precisions import PRECISIONS
from shardlab.train import perturbed


@pytest.mark.parametrize(("precision", "digits"), [("full", 24), ("bf16", 8)])
def test_a_twin_s_weights_are_one_rounding_apart(tmp_path, monkeypatch, precision, digits):
    """2^-24 of each, or 2^-8 in bf16, as one of the normal distribution; another number, another twin."""
    dtype = "float64" if precision == "full" else "float32"
    # float32's distance in float64, which shows it.
    fine = PRECISIONS["float64"]._replace(rounding=PRECISIONS["float32"].rounding)
    monkeypatch.setitem(PRECISIONS, "float64", fine)
    run = tiny_run("llama2", dtype=dtype, precision=precision)
    save_initial(run, tmp_path / "initial")
    moved = []
    for number, name in ((0, "first"), (0, "again"), (1, "second")):
        perturbed.move(run, tmp_path / "initial", number, tmp_path / name)
        moved.append(load_file(tmp_path / name))
    first, again, second = moved
    before = load_file(tmp_path / "initial")
    apart = torch.cat([(first[name] / value - 1)[value != 0].flatten() for name, value in before.items()])
    assert float(apart.std()) == pytest.approx(2**-digits, rel=0.05)
    assert abs(float(apart.mean())) < 2**-digits / 20
    assert all(first[name].equal(again[name]) for name in before)
    assert not all(first[name].equal(second[name]) for name in before)
