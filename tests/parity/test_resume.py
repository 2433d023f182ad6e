"""A checkpoint of any strategy, continued by any other on any number of ranks, ends where an uninterrupted run ends."""

import pytest
from cases import chosen
from group import Group, newest, steps
from safetensors.torch import load_file

from helpers.common import save_initial, tiny_run
from shardlab.errors import UserError
from shardlab.train import loop

HALF = {"max_steps": 2, "checkpoint_interval_steps": 2}
SHORT = [
    ("single", "fsdp", "llama2", 2),
    ("hsdp", "tp_sp", "vit", 2),
    ("fsdp_offload", "ddp", "mlp", 2),
    ("pp_zbv", "fsdp", "vit", 2),
    ("ep", "single", "moe", 2),
    ("fsdp_tp", "cp_ring", "llama2", 2),
    ("zero2", "zero3", "vit", 2),
    ("zero3", "single", "vit", 2),
]
"""Strategy that stops, strategy that resumes, workload, ranks per node of the first."""
LONG = [
    ("pp", "ddp", "mnist", 2),
    ("ddp", "fsdp_tp", "llama2", 2),
    ("fsdp", "pp_interleaved", "llama2", 4),
    ("tp", "fsdp_pp", "xsum", 2),
    ("fsdp_ep_cp", "ep", "moe", 4),
    ("fsdp", "fsdp_tp_ep", "moe", 2),
    ("fsdp", "zero2", "vit", 2),
]
GROUPS = {
    "decay": "matrices",
    "groups": {"layers.0": {"learning_rate_factor": 0.5}, "head": {"weight_decay": 0.3}},
    "ema_decay": 0.7,
}
"""Of vit: each group has states of its own under ZeRO, and its average."""
LOW = ("zero1", "zero3")
"""Strategies that are stopped and resumed in bf16: their float32 master weights are part of a checkpoint."""


def dtype(*strategies):
    return "float32" if any("zero" in name for name in strategies) else "float64"


@pytest.fixture(scope="module")
def folder(request, server, tmp_path_factory, tiny_data):
    """Folder with the whole training on one device, and the two halves of every pair."""
    group = Group(server, tmp_path_factory.mktemp("resume"), tiny_data)
    found = chosen(request)
    whole, half, resumed = [], [], []
    for before, after, workload, ranks in [each for each in found if isinstance(each, tuple)]:
        kind, name = dtype(before, after), f"{before}-half-{workload}-{dtype(before, after)}"
        recipe = {"dtype": kind} | (GROUPS if workload == "vit" else {})
        whole.append((f"single-{workload}-{kind}", tiny_run(workload, **recipe)))
        half.append((name, tiny_run(workload, before, ranks, **HALF, **recipe)))
        resumed.append((f"{before}-{after}-{workload}", tiny_run(workload, after, **recipe), name))
    for name in [each for each in found if isinstance(each, str)]:
        run, first = (tiny_run("vit", name, precision="bf16", ema_decay=0.7, **some) for some in ({}, HALF))
        half += [(f"{name}-bf16", run), (f"{name}-bf16-half", first)]
        resumed.append((f"{name}-bf16-resumed", run, f"{name}-bf16-half"))
    for runs in (whole, half, resumed):
        group.train(runs)
    return group.folder


@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=[pytest.mark.long] * (pair in LONG), id="-".join(pair[:3])) for pair in (*SHORT, *LONG)],
)
def test_ends_where_an_uninterrupted_run_ends(folder, pair):
    before, after, workload, _ = pair
    kind = dtype(before, after)
    single, actual = folder / f"single-{workload}-{kind}", folder / f"{before}-{after}-{workload}"
    assert [step["step"] for step in steps(actual)] == [2, 3]
    pairs = list(zip(steps(actual), steps(single)[2:], strict=True))
    tolerance = 1e-10 if kind == "float64" else 5e-6
    for key in ("loss", "grad_norm"):
        assert max(abs(continued[key] / whole[key] - 1) for continued, whole in pairs) < tolerance
    # In float32 AdamW makes updates of rounding: 9e-5 after ten steps; an average that began anew would be 4e-4 away.
    files = {"model.safetensors": tolerance} if kind == "float64" else {}
    files |= {"ema.safetensors": max(tolerance, 1e-4)} if workload == "vit" else {}
    for file, most in files.items():
        whole, continued = (load_file(path / file) for path in (single, actual))
        assert continued.keys() == whole.keys()
        assert max(float((continued[name] - whole[name]).abs().max()) for name in whole) < most


@pytest.mark.parametrize("name", LOW)
def test_master_weights_are_part_of_a_checkpoint(folder, name):
    """Bitwise; the final weights and their averages are of the masters, not of what bf16 keeps of them."""
    whole, resumed = folder / f"{name}-bf16", folder / f"{name}-bf16-resumed"
    for key in ("loss", "grad_norm"):
        assert [step[key] for step in steps(resumed)] == [step[key] for step in steps(whole)[2:]]
    for file in ("model.safetensors", "ema.safetensors"):
        ours, reference = (load_file(path / file) for path in (whole, resumed))
        assert all(value.equal(reference[key]) for key, value in ours.items())
        assert any(not value.equal(value.bfloat16().float()) for value in ours.values())


@pytest.mark.parametrize("pair", SHORT[1:2])
def test_a_checkpoint_of_something_else_is_refused(folder, pair, tiny_data, tmp_path):
    of_vit = newest(folder / "hsdp-half-vit-float64")
    for workload, optimizer, words in (
        ("mlp", "sgd", "a different workload: vit, and this run has mlp"),
        ("vit", "adadelta", "recipe.optimizer.name: adam, and this run has adadelta"),
    ):
        run = tiny_run(
            workload, dtype="float64", optimizer={"name": optimizer}, **(GROUPS if workload == "vit" else {})
        )
        save_initial(run, initial := tmp_path / "initial")
        with pytest.raises(UserError, match=words):
            loop.train(run, tiny_data / workload, initial, tmp_path / "out", {}, loop.TrainOptions(resume=of_vit))
