"""A checkpoint of any strategy, continued by any other on any number of ranks, ends where an uninterrupted run ends."""

import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from group import Group, newest, seal, steps
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from helpers.common import tiny_run
from shardlab.errors import UserError
from shardlab.train import loop

HALF = {"max_steps": 2, "checkpoint_interval_steps": 2}
PAIRS = [
    ("single", "fsdp", "llama2", 2),
    ("ddp", "fsdp_tp", "llama2", 2),
    ("fsdp", "single", "xsum", 2),
    ("fsdp", "pp_interleaved", "llama2", 4),
    ("hsdp", "tp_sp", "vit", 2),
    ("fsdp_tp", "mp", "llama2", 2),
    ("tp", "fsdp_pp", "xsum", 2),
    ("pp", "ddp", "mnist", 2),
    ("fsdp_offload", "ddp", "mlp", 2),
    ("pp_zbv", "fsdp", "vit", 2),
    ("pp", "fsdp", "moe", 2),
    ("fsdp_ep_cp", "ep", "moe", 4),
    ("ep", "single", "moe", 2),
    ("fsdp", "fsdp_tp_ep", "moe", 2),
    ("fsdp_cp", "single", "xsum", 4),
    ("fsdp_tp", "cp_ring", "llama2", 2),
    ("zero1", "fsdp", "vit", 2),
    ("fsdp", "zero2", "vit", 2),
    ("zero2", "zero3", "vit", 2),
    ("zero3", "single", "vit", 2),
]
"""Strategy that stops, strategy that resumes, workload, ranks per node of the first."""
GROUPS = {
    "decay": "matrices",
    "groups": {"layers.0": {"learning_rate_factor": 0.5}, "head": {"weight_decay": 0.3}},
    "ema_decay": 0.7,
}
"""Of vit: each group has states of its own under ZeRO, and its average."""
LONG = ("pp_interleaved", "fsdp_pp", "fsdp_ep_cp", "fsdp_tp_ep", "fsdp_cp")
"""Strategies of the long form."""
REPEATED = [("pp", "fsdp", "moe", 2), ("zero1", "fsdp", "vit", 2)]
"""Pairs of the long form: others have each of their strategies and workloads, LOW has zero1."""
LOW = ("zero1", "zero2", "zero3")
"""Strategies that are stopped and resumed in bf16: their float32 master weights are part of a checkpoint."""


def dtype(*strategies):
    return "float32" if any("zero" in name for name in strategies) else "float64"


def is_long(pair):
    return pair in REPEATED or not {*pair}.isdisjoint(LONG)


def requested(items, *, long):
    """The pairs of PAIRS and the names of LOW that the chosen tests need: all pairs if one looks at several."""
    actual = [item for item in items if "folder" in item.fixturenames and item.path == Path(__file__)]
    chosen = [(*item.callspec.params.values(),) for item in actual if hasattr(item, "callspec")]
    pairs = [pair for pair in PAIRS if pair in chosen] if len(chosen) == len(actual) else PAIRS
    return [pair for pair in pairs if long or not is_long(pair)], [name for name in LOW if (name,) in chosen]


@pytest.fixture(scope="module")
def folder(request, server, tmp_path_factory, tiny_data):
    """Folder with the whole training on one device, and the two halves of every pair."""
    group = Group(server, tmp_path_factory.mktemp("resume"), tiny_data)
    first, second = defaultdict(list), defaultdict(list)
    pairs, low = requested(request.session.items, long=request.config.getoption("--long"))
    for before, after, workload, ranks in pairs:
        kind = dtype(before, after)
        groups = GROUPS if workload == "vit" else {}
        group.add(f"single-{workload}-{kind}", tiny_run(workload, dtype=kind, **groups))
        run = tiny_run(workload, before, ranks, dtype=kind, **HALF, **groups)
        first[run.world_size].append((f"{before}-half-{workload}-{kind}", run, None))
        run = tiny_run(workload, after, dtype=kind, **groups)
        second[run.world_size].append((f"{before}-{after}-{workload}", run, f"{before}-half-{workload}-{kind}"))
    group.start(1)
    for name in low:
        whole, half = (tiny_run("vit", name, precision="bf16", ema_decay=0.7, **some) for some in ({}, HALF))
        first[2] += [(f"{name}-bf16", whole, None), (f"{name}-bf16-half", half, None)]
        second[2].append((f"{name}-bf16-resumed", whole, f"{name}-bf16-half"))
    first[2].append(("torn", tiny_run("mlp", "ddp", **HALF), "torn_folder"))
    for halves in (first, second):
        for ranks, runs in halves.items():
            for name, run, other in runs:
                fault = other if other == "torn_folder" else ""
                group.add(name, run, fault=fault, resume=None if fault else other)
            group.start(ranks)
    return group.folder


@pytest.mark.parametrize(
    ("before", "after", "workload", "ranks"),
    [pytest.param(*pair, marks=[pytest.mark.long] * is_long(pair)) for pair in PAIRS],
)
def test_ends_where_an_uninterrupted_run_ends(folder, before, after, workload, ranks):
    kind = dtype(before, after)
    single, actual = folder / f"single-{workload}-{kind}", folder / f"{before}-{after}-{workload}"
    assert [step["step"] for step in steps(actual)] == [2, 3]
    pairs = list(zip(steps(actual), steps(single)[2:], strict=True))
    tolerance = 1e-10 if kind == "float64" else 5e-6
    for key in ("loss", "grad_norm"):
        assert max(abs(continued[key] / whole[key] - 1) for continued, whole in pairs) < tolerance
    if kind == "float64":  # in float32 AdamW makes updates of rounding: 9e-5 after ten steps
        whole, continued = (load_file(path / "model.safetensors") for path in (single, actual))
        assert continued.keys() == whole.keys()
        assert max(float((continued[name] - whole[name]).abs().max()) for name in whole) < tolerance
    if workload == "vit":  # an average that began anew would be 4e-4 away
        whole, continued = (load_file(path / "ema.safetensors") for path in (single, actual))
        assert max(float((continued[name] - whole[name]).abs().max()) for name in whole) < max(tolerance, 1e-4)


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


def test_ranks_wait_for_the_folder_of_a_checkpoint(folder):
    """Rank 0 removes what is left of an earlier one, and makes it."""
    assert len([*(newest(folder / "torn") / "shards").iterdir()]) == 2


def test_the_optimizer_is_what_makes_the_difference(folder, tiny_data, tmp_path):
    """With its moments cleared the next steps differ by far more than the tolerances."""
    run = tiny_run("vit", dtype="float32", **GROUPS)
    damaged = shutil.copytree(newest(folder / "zero2-half-vit-float32"), tmp_path / "cleared")
    for path in (damaged / "shards").iterdir():
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            cleared = {name: value * (not name.endswith("/exp_avg")) for name, value in tensors.items()}
            save_file(cleared, path, metadata=file.metadata())
    seal(damaged)
    loop.train(
        run,
        tiny_data / "vit",
        folder / "vit-float32.safetensors",
        tmp_path / "out",
        {},
        loop.TrainOptions(resume=damaged),
    )
    again, whole = steps(tmp_path / "out"), steps(folder / "single-vit-float32")[2:]
    assert abs(again[-1]["grad_norm"] / whole[-1]["grad_norm"] - 1) > 1e-3


def test_a_checkpoint_of_something_else_is_refused(folder, tiny_data, tmp_path):
    def resume(workload, checkpoint, **recipe):
        run = tiny_run(workload, **(GROUPS if workload == "vit" else {}), **recipe)
        initial = folder / f"{workload}-{run.recipe.dtype}.safetensors"
        loop.train(run, tiny_data / workload, initial, tmp_path / "out", {}, loop.TrainOptions(resume=checkpoint))

    of_vit = newest(folder / "hsdp-half-vit-float64")
    with pytest.raises(UserError, match=r"a different workload: vit, and this run has mnist"):
        resume("mnist", of_vit, dtype="float64")
    with pytest.raises(UserError, match=r"a different recipe.optimizer.name: adam, and this run has adadelta"):
        resume("vit", of_vit, dtype="float64", optimizer={"name": "adadelta"})
    with pytest.raises(UserError, match=r"a different recipe.global_batch_size: 5, and this run has 4"):
        resume("vit", of_vit, dtype="float64", global_batch_size=4)
    damaged = shutil.copytree(of_vit, tmp_path / "damaged")
    next((damaged / "shards").iterdir()).unlink()
    with pytest.raises(UserError, match=r"shard-.* is missing from its checkpoint"):
        resume("vit", damaged, dtype="float64")
    with pytest.raises(UserError, match="is missing"):
        resume("vit", tmp_path / "nothing")
