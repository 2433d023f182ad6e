"""Tensor bytes of each rank against theory: exact for weights, gradients and optimizer, near for activations."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from group import Group, job
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from helpers.common import build, initial_weights, save_initial, tiny_run, with_weights
from shardlab.measure.memory import Memory
from shardlab.models.weights import save
from shardlab.plan.simulate import simulate
from shardlab.runtime import tasks

RANKS = 2
STRATEGIES = ("single", "ddp", "fsdp", "fsdp_size", "tp", "pp", "zero1", "zero2", "zero3")
STATES = {"llama2": 2, "mnist": 2}
"""Tensors that the optimizer keeps for each parameter, in its shape (AdamW's moments, Adadelta's averages)."""
SHARDED = ("fsdp", "fsdp_ep")
"""Strategies of moe, whose stacked experts have few rows: on two ranks, and on four."""
CROWDED = tiny_run("moe", "ep", global_batch_size=12)
"""As many samples as there are, so that activations are most of its peak."""
FULL = {"activation_checkpointing": "full"}


@pytest.fixture(scope="module")
def reports(server, tmp_path_factory, tiny_data):
    """train.json by (strategy, workload); llama2 under single and pp also with recomputation."""
    group = Group(server, tmp_path_factory.mktemp("memory"), tiny_data)
    all_choose_experts_of_the_first_rank(group, CROWDED)
    group.start(RANKS)
    runs = {(strategy, workload): tiny_run(workload, strategy) for strategy in STRATEGIES for workload in STATES}
    runs |= {("full", "llama2"): tiny_run("llama2", **FULL)}
    runs |= {(strategy, "moe"): tiny_run("moe", strategy) for strategy in SHARDED}
    for ranks in (1, RANKS, 4):
        for (name, workload), run in runs.items():
            if run.world_size == ranks:
                group.add(f"{name}-{workload}", run)
        group.start(ranks)
    runs["crowded", "moe"] = CROWDED
    return {key: json.loads((group.folder / "-".join(key) / "train.json").read_text()) for key in runs}


def all_choose_experts_of_the_first_rank(group, run):
    """Add a run of two ranks in which all tokens do; alone in its processes, so that its peak is its own."""
    weights, path = initial_weights(run), group.folder / "crowded.safetensors"
    for name, value in weights.items():
        if name.endswith("router.bias"):
            value[:2] = 10.0
    save(weights.items(), weights, path)
    group.jobs.append(job(run, group.data / "moe", path, group.folder / "crowded-moe"))


def largest(reports, strategy, workload, kind):
    """The most that each rank held of a kind."""
    return [rank["largest"][kind] for rank in reports[strategy, workload]["tensor_bytes"]]


def shapes(workload):
    return {name: tuple(value.shape) for name, value in build(tiny_run(workload)).named_parameters()}


def part(workload, strategy, name, shape):
    """Bytes of a parameter that a rank of two has by theory."""
    size = 4 * math.prod(shape)
    if strategy.startswith("fsdp"):
        return 4 * -(-shape[0] // RANKS) * math.prod(shape[1:])
    plan = tiny_run(workload).model.tensor
    pattern = name.rpartition(".")[0].replace("layers.0", "layers.*").replace("layers.1", "layers.*")
    whole = plan.get(pattern) in (None, "norm") or (plan[pattern] == "row" and name.endswith("bias"))
    return size // RANKS if strategy == "tp" and not whole else size


@pytest.mark.parametrize("workload", STATES)
@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", "fsdp_size", "tp"])
def test_weights_gradients_and_optimizer_are_what_theory_says_to_the_byte(reports, strategy, workload):
    parameters = shapes(workload)
    expected = sum(part(workload, strategy, *parameter) for parameter in parameters.items())
    ranks = 1 if strategy == "single" else RANKS
    assert largest(reports, strategy, workload, "weights") == [expected] * ranks
    counters = 4 * len(parameters)  # each parameter's number of steps
    assert largest(reports, strategy, workload, "optimizer") == [STATES[workload] * expected + counters] * ranks
    if strategy != "tp":  # where DTensor keeps one gradient as a view into a larger tensor
        assert largest(reports, strategy, workload, "gradients") == [expected] * ranks


@pytest.mark.parametrize("strategy", SHARDED)
def test_stacked_experts_are_divided_whatever_their_number(reports, strategy):
    """Also a shared expert, of which there is one: nothing is filled up."""
    run = tiny_run("moe", strategy)
    ranks = run.world_size
    expected = sum(4 * math.prod(shape) for shape in shapes("moe").values()) // ranks
    for kind in ("weights", "gradients"):
        assert largest(reports, strategy, "moe", kind) == [expected] * ranks
    counters = 4 * len(shapes("moe"))
    assert largest(reports, strategy, "moe", "optimizer") == [2 * expected + counters] * ranks


def test_a_plan_knows_the_memory_of_a_rank_whose_experts_all_tokens_choose(reports, tiny_data):
    fullest, empty = (rank["peak"] for rank in reports["crowded", "moe"]["tensor_bytes"])
    (plan,) = simulate([(CROWDED, tiny_data / "moe")])
    (even,) = (rank["peak"] for rank in plan["tensor_bytes"])
    worst = plan["worst_memory_bytes"]
    assert empty < even < worst
    # gloo's thread still holds the input of the last exchange: all rows of both ranks, as they return
    args, samples = CROWDED.model.args, CROWDED.recipe.global_batch_size
    held = 4 * samples * CROWDED.data.options["sequence_length"] * args["top_k"] * args["dim"]
    assert 0.99 * worst < fullest < 1.001 * (worst + held)
    assert fullest - even > 5 * held


@pytest.mark.parametrize("workload", STATES)
def test_stages_hold_each_parameter_once(reports, workload):
    total = 4 * sum(math.prod(shape) for shape in shapes(workload).values())
    for kind, copies in (("weights", 1), ("gradients", 1)):
        assert sum(largest(reports, "pp", workload, kind)) == copies * total
    assert max(largest(reports, "pp", workload, "weights")) < total


def test_zero_shards_the_optimizer_and_in_stage_3_the_weights(reports):
    total = 4 * sum(math.prod(shape) for shape in shapes("llama2").values())
    for strategy, weights, masters in (("zero1", total, total / RANKS), ("zero3", total / RANKS, 0)):
        for held in largest(reports, strategy, "llama2", "optimizer"):
            assert held == pytest.approx(total * 2 / RANKS, rel=0.01)
        for held in largest(reports, strategy, "llama2", "weights"):
            assert held == pytest.approx(weights, rel=0.01)
        for held in largest(reports, strategy, "llama2", "master_weights"):
            assert held == pytest.approx(masters, rel=0.01), "in stage 3 the optimizer updates the weights themselves"


def test_zero_s_buckets_are_sized_to_the_model(reports):
    """Of a fixed size, as DeepSpeed's own, they alone held eight times what one device holds of this model."""
    (single,) = [rank["peak"] for rank in reports["single", "mnist"]["tensor_bytes"]]
    for strategy in ("zero1", "zero2", "zero3"):
        assert max(rank["peak"] for rank in reports[strategy, "mnist"]["tensor_bytes"]) < 2.5 * single, strategy


def test_recomputation_frees_activations_and_tensor_parallelism_splits_them(reports):
    (whole,) = largest(reports, "single", "llama2", "activations")
    (full,) = largest(reports, "full", "llama2", "activations")
    assert full < 0.8 * whole
    # 0.60; 0.70 where gloo's thread still holds the input of a collective that is done
    assert max(largest(reports, "tp", "llama2", "activations")) < 0.75 * whole


def test_activations_are_what_autograd_saves(tiny_data, tmp_path):
    """Within 5 %, and the outputs: the rest are results that the next operator takes and nobody keeps."""
    run = tiny_run("llama2")
    save_initial(run, tmp_path / "initial")
    model, device = with_weights(run), torch.device("cpu")
    task = tasks.load(run.task, tiny_data / "llama2", torch.float32, device)
    batch = task.batch("train", np.arange(5))
    known = {value.data_ptr() for value in (*model.parameters(), *batch.values())}
    saved = {}

    def keep(value):
        storage = value.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = (storage.nbytes(), value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        outputs = task.outputs(model, batch)
        loss = task.loss(outputs, batch)
    keep(outputs)  # the caller of the model has them, too
    expected = sum(size for size, _ in saved.values())
    del loss, outputs
    saved.clear()
    memory = Memory(device)
    with memory:
        loss = task.loss(task.outputs(model, batch), batch)
        held = memory.figures()["at_peak"]["activations"]
        loss.backward()
    assert held == pytest.approx(expected, rel=0.05)


def test_storages_are_counted_when_made_freed_and_resized():
    memory = Memory(torch.device("cpu"))
    with memory:
        before = memory.figures()["peak"]
        x = torch.ones(1000)
        y = x[:10]
        z = x * 2
        del z
        z = x * 3
        x.untyped_storage().resize_(8000)
    found = memory.figures()
    assert found["peak"] - before == 8000 + 4000
    assert found["largest"]["gathered"] == 8000, "what is resized is FSDP's"
    assert SimpleNamespace(y=y, z=z)


def test_a_tensor_that_a_collective_fills_is_counted_once():
    """Views of its wrapper each look like a storage of the whole's size."""
    memory = Memory(torch.device("cpu"))
    with memory:
        whole = torch.empty(100)
        before = memory.figures()["peak"]
        parts = AsyncCollectiveTensor(whole).chunk(4)
    assert {type(part) for part in parts} == {AsyncCollectiveTensor}
    assert memory.figures()["peak"] == before
