"""Equality with one device: every strategy on every workload, at the gradients, each step, and the test loss.

Tolerances: float64 1e-10 for PyTorch's strategies; in float32, for DeepSpeed, which has no float64, 5e-6 per step
and 1e-4 at the test loss.
"""

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest
import theory
from cases import (
    ADAPTERS,
    ALWAYS_CLIPPED,
    CASES,
    EXPERTS,
    FAULTY,
    FROZEN,
    HALF,
    HARD,
    LONG,
    MATRIX,
    MORE,
    MUON,
    ROUNDED,
    SELECTIVE,
    TRAP,
    Case,
    parametrized,
    requested,
    supported,
    with_marks,
)
from group import Group, bytes_by_theory, of_reference, outside, steps, without_exchanges
from group import differences as compare
from safetensors.torch import load_file

from helpers.exported_adapters import distances
from shardlab.plan.simulate import simulate
from shardlab.records.reports import TrainReport

pytestmark = pytest.mark.timeout(2400)  # the first test waits for the trainings of all


@pytest.fixture(scope="session")
def results(request, server, tmp_path_factory, tiny_data):
    """Folder with the results of the requested cases and of their references."""
    group = Group(server, tmp_path_factory.mktemp("parity"), tiny_data)
    by_ranks = defaultdict(list)
    for case in requested(request.session.items, long=request.config.getoption("--long")):
        by_ranks[case.run().world_size, case.native].append(case)
        group.add(case.reference.name, case.reference.run())
    group.start(1)
    for (ranks, _), cases in by_ranks.items():
        for case in cases:
            group.add(case.name, case.run(), case.fault)
            if case in MATRIX:
                group.add(f"{case.name}-test", case.run(), evaluate=case.reference.name)
        group.start(ranks)
    return group.folder


def differences(results, case):
    """Largest relative differences of a case to one device."""
    run = case.reference.run()
    return compare(results / case.name, results / case.reference.name, run, data_of(results, case))


def data_of(results, case):
    """Folder of a case's prepared data set."""
    return Path(json.loads((results / "jobs.json").read_text())[0]["data"]).parent / case.workload


@parametrized(CASES)
def test_equals_one_device(results, case, record_property):
    found = differences(results, case)
    record_property("differences", found)
    assert outside(found, native=case.native) == {}


# The library's experts have no float64 on CPUs.
@parametrized([c for c in ADAPTERS if c.strategy in ("fsdp_tp", "pp", "tp_sp") and c.workload != "moe"])
def test_peft_computes_what_a_trained_adapter_does(results, case, tmp_path):
    of_peft, merged, without = distances(case.run(), results / case.name / "model.safetensors", tmp_path)
    assert max(of_peft, merged) < 1e-5 < 1e-3 < without


@parametrized([case for case in (*MATRIX, *HARD, *SELECTIVE, *MORE) if case.native])
def test_no_rank_reads_from_its_device_in_a_step(results, case):
    """The host would wait for the device there, and the device then for the host.

    But for the loop over experts, which needs their numbers of tokens; on a GPU one product takes its place.
    """
    reads = [json.loads(path.read_text()) for path in (results / case.name).glob("reads-*.json")]
    assert len(reads) == case.run().world_size
    assert {name for read in reads for name in read} <= ({"tolist"} if case.workload == "moe" else set())


@parametrized(MATRIX)
def test_each_group_has_the_site_s_limit_and_each_rank_writes_its_part(results, case):
    """ZeRO's tensors are gathered whole, one at a time, and one rank keeps them."""
    run, folder = case.run(), results / case.name
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(run.world_size)]
    limits = {seconds for rank in ranks for seconds in rank["timeouts"]}
    assert limits == ({float(run.site.hang_seconds)} if run.mesh else set())
    first, *others = [len(rank["written"]) for rank in ranks]
    assert first > 0
    assert all(count == 0 if run.engine == "deepspeed" else count > 0 for count in others)


@parametrized(MATRIX)
def test_evaluation_under_the_own_strategy_equals_one_device(results, case):
    """No rank holds more than its part if the strategy splits the weights."""
    run = case.reference.run()
    whole = of_reference(run, data_of(results, case), results / case.reference.name)
    report = json.loads((results / f"{case.name}-test" / "test.json").read_text())
    assert report["loss"] == pytest.approx(whole.loss, rel=1e-10 if case.native else 5e-6)
    assert (report["samples"], report["targets"]) == (whole.samples, whole.targets)
    assert report["metric_value"] is None or report["metric_value"] == pytest.approx(whole.metric_value, rel=1e-5)
    size = sum(value.nbytes for value in load_file(results / case.reference.name / "model.safetensors").values())
    splits = (
        {"dp_shard", "cp", "pp", "tp"} if case.native else {"dp_shard"} if case.strategy.startswith("zero3") else set()
    )
    parts = math.prod(degree for axis, degree in case.run().mesh.root.items() if axis in splits)
    assert len(report["held"]) == case.run().world_size
    assert sum(report["held"]) / len(report["held"]) < 1.3 * size / parts + 4096
    assert max(report["held"]) <= size


@parametrized([*MATRIX, *MORE])
def test_the_ranks_divide_the_work(results, case):
    """Each sample and each target once; ranks of a tensor-parallel group share both, those of a context-parallel group
    the samples, and of a pipeline one counts.
    """
    report = json.loads((results / case.name / "train.json").read_text())
    whole = steps(results / case.reference.name)
    tp = report["mesh"].get("tp", 1)
    cp = report["mesh"].get("cp", 1)
    for per_rank, total, copies in (("samples_per_rank", "samples", tp * cp), ("targets_per_rank", "targets", tp)):
        expected = sum(step[total] for step in whole)
        assert sum(report[per_rank]) == copies * expected
        assert report[total] == expected
        working = [count for count in report[per_rank] if count]
        idle = report["mesh"].get("pp", 1)
        if (case.workload, total) == ("vit", "targets"):
            idle *= cp  # ranks without the class token
        # Of eight pieces the first rank has the first and the last: the begin of an instruction, and no document.
        unasked = (case.workload, total, cp) == ("instruct", "targets", 4) and case.strategy != "cp_ulysses"
        assert len(working) == report["world_size"] // idle - unasked
        if len(working) > copies:
            assert max(working) < expected


@parametrized([case for case in CASES if case.workload == "moe" and case.native])
def test_each_rank_counts_the_tokens_of_all(results, case):
    """Each token once per layer and choice, padding and recomputation left out, none dropped; the biases follow."""
    whole, actual = steps(results / case.reference.name), steps(results / case.name)
    loads = [[step["expert_load"] for step in each] for each in (whole, actual)]
    assert loads[0] == loads[1]
    assert {step["dropped_tokens"] for step in (*whole, *actual)} == {0}
    top_k = case.run().model.args["top_k"]
    assert all(sum(layer) == top_k * step["targets"] for step in actual for layer in step["expert_load"])
    ours, expected = (load_file(results / each / "model.safetensors") for each in (case.name, case.reference.name))
    biases = [name for name in ours if name.endswith("router.bias")]
    assert len(biases) == case.run().model.args["layers"]
    for name in biases:
        assert float(ours[name].abs().max()) > 0
        assert float((ours[name] - expected[name]).abs().max()) < 1e-12


TECHNIQUES = ("ddp", "fsdp", "mp", "pp", "pp_zbv", "tp_sp", "cp", "fsdp_tp_pp", "zero2", "zero3")
PLANNED = [case for case in MATRIX if case.workload == "llama2"]
# Experts under each technique, and each strategy with ep.
PLANNED += [case for case in MATRIX if case.workload == "moe" and case.strategy in (*TECHNIQUES, *EXPERTS)]
# Its samples differ in length, so the ranks' parts of a batch differ in shape.
PLANNED += [case for case in MATRIX if (case.strategy, case.workload) == ("fsdp_tp", "xsum")]
# Its model, not its batch, has the sequences that are split.
PLANNED += [case for case in MATRIX if (case.strategy, case.workload) == ("fsdp_cp", "vit")]
# Frozen parameters, also beside factors that are trained: no states, no traffic.
PLANNED += [*FROZEN, *ADAPTERS]
# Matrices that travel to their owners and back.
PLANNED += MUON
PLANNED_SHORT = [case for case in (*FROZEN, *ADAPTERS, *MUON) if case.strategy in ("pp", "fsdp")]
PLANNED_SHORT += [case for case in MATRIX if (case.strategy, case.workload) in (("ep", "moe"), ("pp", "moe"))]
PLANNED_SHORT += [
    case
    for case in MATRIX
    if case.workload == "llama2"
    and case.strategy in ("ddp", "fsdp", "mp", "pp_zbv", "tp_sp", "cp", "fsdp_tp", "zero2", "zero3")
]
"""A plan of each technique, of one pair of them, and of what each kind of recipe holds."""


@pytest.fixture(scope="session")
def plans(request, results):
    """Plans of the cases of the tests that will run, by name."""
    items = [item for item in request.session.items if "plans" in item.fixturenames]
    cases = [item.callspec.params["case"] for item in items if not item.get_closest_marker("skip")]
    return dict(
        zip([case.name for case in cases], simulate([(c.run(), data_of(results, c)) for c in cases], 2), strict=True)
    )


@with_marks([c for c in PLANNED if supported(c)], lambda case: case in LONG or case not in PLANNED_SHORT)
def test_a_plan_says_what_is_held_and_sent(results, plans, case):
    """The engine's step on fake tensors, compared with a training: the model's state and traffic to the byte.

    Not the peak, since these ranks still hold tensors of other cases (see tests/workflow/test_matrix.py).
    """
    plan = plans[case.name]
    report = json.loads((results / case.name / "train.json").read_text())
    for rank, planned in zip(plan["ranks"], plan["tensor_bytes"], strict=True):
        measured = report["tensor_bytes"][rank]["largest"]
        # DeepSpeed keeps some scalars more.
        assert planned["largest"]["optimizer"] == pytest.approx(measured["optimizer"], rel=0 if case.native else 1e-3)
        if case.native:
            assert planned["largest"]["weights"] == measured["weights"]
            most = 1.01 if "ep" not in case.run().mesh.root else 1.3  # a plan spreads tokens evenly over the experts
            assert 0.8 < planned["largest"]["activations"] / measured["activations"] < most
    planned, measured = (without_exchanges(each["traffic"]) for each in (plan, report))
    assert planned[0] == pytest.approx(measured[0], rel=1e-9)
    assert planned[1] == pytest.approx(measured[1], rel=0.5)
    assert plan["flops_per_step"] == report["flops_per_step"]


@parametrized([case for case in MATRIX if case.strategy in EXPERTS])
def test_ranks_hold_their_part_of_the_experts_and_of_the_rest(results, case):
    """In the mean over pipeline stages, but for counters, and norms and routers, which tp does not split.

    Not the gradients, which tp and pipelines partly hold as views into larger tensors.
    """
    report = TrainReport.model_validate_json((results / case.name / "train.json").read_text())
    assert report.expert_parameters > report.parameters / 5
    for kind in ("weights", "optimizer"):
        held = [rank.largest[kind] for rank in report.tensor_bytes]
        assert 0.99 < sum(held) / len(held) / theory.state_bytes(report)[kind] < 1.05


@parametrized([*MATRIX, *MORE])
def test_what_is_sent_is_what_theory_says(results, case):
    """Exact for PyTorch's strategies; DeepSpeed is within a factor of the paper's volume (see theory.py)."""
    report = json.loads((results / case.name / "train.json").read_text())
    measured, expected = report["bytes_per_step"], bytes_by_theory(results / case.name)
    if expected is None:
        assert case.strategy in ("tp_loss", "fsdp_size"), "a formula is missing"
    elif case.native:
        assert measured == pytest.approx(expected, rel=1e-9)
    elif case.workload != "mlp":  # whose 38 values DeepSpeed fills up to its alignment
        assert 0.66 < measured / expected < 1.51
    assert (measured > 0) == (case.run().world_size > 1)


@parametrized([case for case in MATRIX if case.strategy in ("mp", "mp_ranks")])
def test_one_device_works_at_a_time_in_model_parallelism(results, case):
    """Whatever the parts' sizes, the shares of a step in which the devices work add up to one at most."""
    report = json.loads((results / case.name / "train.json").read_text())
    assert len(report["idle"]) == 2
    assert 0 < sum(1 - idle for idle in report["idle"]) <= 1


@pytest.mark.parametrize("workload", ["mlp", "mnist", "xsum", "vit"])  # llama2's size follows Python's version
def test_a_last_batch_is_smaller_than_the_ranks_of_some_strategies(results, workload):
    sizes = {line["samples"] for line in steps(results / f"single-{workload}-float64")}
    assert 0 < min(sizes) < 4, "the parity cases must train on an uneven last batch"


def test_clipping_is_always_active_in_its_cases(results):
    name = next(case for case in HARD if case.native).reference.name
    assert all(line["grad_norm"] > ALWAYS_CLIPPED["max_grad_norm"] for line in steps(results / name))


@pytest.mark.parametrize("fault", [case.fault for case in FAULTY])
def test_the_suite_sees_a_fault(results, fault):
    """Each of these hardly changes the final loss of a long run, but must exceed the tolerances."""
    found = differences(results, Case("ddp", "llama2", fault=fault))
    caught = {name for name, value in found.items() if not value <= 1e-10}
    assert caught >= {"gradient", "norm"}
    assert found["gradient"] > 1e-4, "a fault is decades above the tolerance, rounding decades below"


@pytest.mark.long
def test_compiled_blocks_behind_a_split_embedding_need_its_protection(results):
    """Without the clone in tensor.py, FSDP+TP silently trains with a wrong gradient."""
    found = differences(results, TRAP)
    assert found["gradient"] > 0.1
    assert found["loss"] < 0.1, "the loss alone would hardly show it"


@parametrized(ROUNDED)
def test_weights_and_states_in_bfloat16_train_alike_under_every_strategy(results, case, record_property):
    """Within a few of its roundings, 2^-9 each."""
    found = differences(results, case)
    record_property("differences", found)
    assert 0 < found["gradient"] < 0.1
    assert found["loss"] < 5e-3
    assert found["test"] < 5e-3
    weights = load_file(results / case.name / "model.safetensors")
    assert {str(value.dtype) for value in weights.values()} == {"torch.bfloat16"}


@parametrized(HALF)
def test_low_precision_trains_and_is_near_full_precision(results, case, record_property):
    """Near enough to be the same training, and far enough to be bf16; there is no tolerance."""
    found = differences(results, case)
    record_property("differences", found)
    assert 1e-4 < found["gradient"] < 5e-2
    assert found["test"] < 1e-2
    if case.strategy == "fsdp":
        gradients = load_file(results / case.name / "gradients.safetensors")
        blocks = {name: value for name, value in gradients.items() if name.startswith("layers.")}
        assert blocks
        sums = [name for name, value in blocks.items() if not value.equal(value.bfloat16().float())]
        assert sums == [*blocks], "bf16 gradients are summed in float32"
