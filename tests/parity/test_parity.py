"""Equality with one device: every strategy on every workload, at the gradients, each step, and the test loss.

Tolerances: float64 1e-10 for PyTorch's strategies; in float32, for DeepSpeed, which has no float64, 5e-6 per step
and 1e-4 at the test loss. What else the suite claims of a training is asserted of the same ones.
"""

import json
import math
from pathlib import Path

import pytest
import theory
from cases import ALWAYS_CLIPPED, EQUAL, EXPERTS, HALF, ROUNDED, chosen, parametrized
from group import Group, of_reference, outside, steps, without_exchanges
from group import differences as compare
from safetensors.torch import load_file

from shardlab.measure.step_profiler import WARMUP_STEPS
from shardlab.plan.simulate import simulate
from shardlab.records.reports import TrainReport

pytestmark = pytest.mark.timeout(2400)  # the first test waits for the trainings of all
PLANNED = {
    "llama2": ("ddp", "fsdp", "mp", "pp_zbv", "tp_sp", "cp", "fsdp_tp", "fsdp_tp_pp", "zero3"),
    "moe": [name for name in EXPERTS if name != "fsdp_ep"],
    # Its samples differ in length, so the ranks' parts of a batch differ in shape.
    "xsum": ("fsdp_tp",),
    # Its model, not its batch, has the sequences that are split.
    "vit": ("fsdp_cp",),
}
"""Strategies whose plan is compared; also those of frozen parameters, adapters, and matrices that travel."""


@pytest.fixture(scope="module")
def results(request, server, tmp_path_factory, tiny_data):
    """Folder with the results of the requested cases and of their references."""
    group, cases = Group(server, tmp_path_factory.mktemp("parity"), tiny_data), chosen(request)
    group.train((case.reference.name, case.reference.run()) for case in cases)
    evaluated = [case for case in cases if case.plain and case in EQUAL]
    group.train(
        [(case.name, case.run()) for case in cases]
        + [(f"{case.name}-test", case.run(), None, case.reference.name) for case in evaluated]
    )
    return group.folder


@pytest.fixture(scope="module")
def plans(request, results, tiny_data):
    """Plans of the cases, by name."""
    cases = [case for case in chosen(request) if is_planned(case)]
    found = simulate([(case.run(), tiny_data / case.workload) for case in cases], 2)
    return dict(zip([case.name for case in cases], found, strict=True))


def is_planned(case):
    of_recipe = case.label in ("frozen", "adapted", "muon") and (case.long or case.strategy in ("pp", "fsdp", "tp_sp"))
    return of_recipe or (case.plain and case.strategy in PLANNED.get(case.workload, ()))


def differences(results, case, tiny_data):
    """Largest relative differences of a case to one device."""
    run = case.reference.run()
    return compare(results / case.name, results / case.reference.name, run, tiny_data / case.workload)


@parametrized(EQUAL)
def test_equals_one_device(results, plans, case, tiny_data):
    assert outside(differences(results, case, tiny_data), native=case.native) == {}
    folder, single = results / case.name, results / case.reference.name
    report = TrainReport.model_validate_json((folder / "train.json").read_text())
    if dict(case.recipe).items() >= ALWAYS_CLIPPED.items():
        assert all(step["grad_norm"] > ALWAYS_CLIPPED["max_grad_norm"] for step in steps(single))
    if case.plain:
        check_traffic(case, report, single)
        check_evaluation(case, folder, single, tiny_data)
        check_memory(case, report)
    if case.native and case.workload == "moe":
        check_experts(case, folder, single)
    if is_planned(case):
        check_plan(case, plans[case.name], report)
    if case.plain and case.strategy in ("mp", "mp_ranks"):
        # Whatever the parts' sizes, the shares of a step in which the devices work add up to one at most.
        assert len(report.idle) == 2
        assert 0 < sum(1 - idle for idle in report.idle) <= 1


def check_evaluation(case, folder, single, tiny_data):
    """Under the own strategy it equals one device, and no rank holds more than its part if that splits the weights."""
    whole = of_reference(case.reference.run(), tiny_data / case.workload, single)
    report = json.loads(Path(f"{folder}-test", "test.json").read_text())
    assert report["loss"] == pytest.approx(whole.loss, rel=1e-10 if case.native else 5e-6)
    assert (report["samples"], report["targets"]) == (whole.samples, whole.targets)
    assert report["metric_value"] is None or report["metric_value"] == pytest.approx(whole.metric_value, rel=1e-5)
    size = sum(value.nbytes for value in load_file(single / "model.safetensors").values())
    of_zero = {"dp_shard"} if case.strategy.startswith("zero3") else set()
    splits = {"dp_shard", "cp", "pp", "tp"} if case.native else of_zero
    parts = math.prod(degree for axis, degree in case.run().mesh.root.items() if axis in splits)
    assert len(report["held"]) == case.run().world_size
    assert sum(report["held"]) / len(report["held"]) < 1.3 * size / parts + 4096
    assert max(report["held"]) <= size


def check_experts(case, folder, single):
    """Each token once per layer and choice, padding and recomputation left out, none dropped; the biases follow."""
    whole, actual = steps(single), steps(folder)
    assert [step["expert_load"] for step in whole] == [step["expert_load"] for step in actual]
    assert {step["dropped_tokens"] for step in (*whole, *actual)} == {0}
    args = case.run().model.args
    assert all(sum(layer) == args["top_k"] * step["targets"] for step in actual for layer in step["expert_load"])
    ours, expected = (load_file(each / "model.safetensors") for each in (folder, single))
    biases = [name for name in ours if name.endswith("router.bias")]
    assert len(biases) == args["layers"]
    for name in biases:
        assert float(ours[name].abs().max()) > 0
        assert float((ours[name] - expected[name]).abs().max()) < 1e-12


def check_plan(case, plan, report):
    """The engine's step on fake tensors: the model's state and traffic to the byte.

    Not the peak, since these ranks still hold tensors of other cases (see tests/workflow/test_matrix.py).
    """
    dims = case.run().mesh.root
    for rank, planned in zip(plan["ranks"], plan["tensor_bytes"], strict=True):
        measured = report.tensor_bytes[rank].largest
        # DeepSpeed keeps some scalars more.
        assert planned["largest"]["optimizer"] == pytest.approx(measured["optimizer"], rel=0 if case.native else 1e-3)
        if case.native:
            assert planned["largest"]["weights"] == measured["weights"]
            most = 1.01 if "ep" not in dims else 1.3  # a plan spreads tokens evenly over the experts
            assert 0.8 < planned["largest"]["activations"] / measured["activations"] < most
    traffic = [entry.model_dump() for entry in report.traffic]
    planned, measured = (without_exchanges(each) for each in (plan["traffic"], traffic))
    parts = case.run().mesh.parts("samples")
    if parts > 1 and case.run().mesh.axes("tensors", "sequence", "experts"):  # the first rank's, of 3 of 5 samples
        assert measured[0] * (1 - 1e-9) < planned[0] < 1.25 * measured[0]
    else:
        assert planned[0] == pytest.approx(measured[0], rel=1e-9)
    assert planned[1] == pytest.approx(measured[1], rel=0.5)
    assert plan["flops_per_step"] == report.flops_per_step


def check_memory(case, report):
    """Ranks hold their part of weights, gradients and optimizer, in the mean over pipeline stages: but for counters,
    and norms and routers, which tp does not split.
    """
    if case.workload != "llama2" and case.strategy not in EXPERTS:
        return
    # Tensor parallelism and pipelines partly hold gradients as views into larger tensors.
    kinds = ("weights", "optimizer", *["gradients"] * (case.strategy in ("ddp", "fsdp", "fsdp_size", "hsdp")))
    for kind in kinds:
        held = [rank.largest[kind] for rank in report.tensor_bytes]
        expected = theory.state_bytes(report)[kind]
        assert expected * 0.999 < sum(held) / len(held) < expected * (1.05 if case.strategy in EXPERTS else 1.002), kind


def check_traffic(case, report, single):
    """What is sent is what theory says."""
    if case.native and case.workload == "llama2":
        expected = theory.bytes_per_step(case.run(), steps(single)[WARMUP_STEPS - 1]["targets"])
        assert expected is None or report.bytes_per_step == pytest.approx(expected, rel=1e-9)
    assert (report.bytes_per_step > 0) == (case.run().world_size > 1)


@parametrized([*HALF, *ROUNDED])
def test_low_precision_trains_and_is_near_full_precision(results, case, tiny_data):
    """Near enough to be the same training, and far enough to be bf16; or, where weights and states are bfloat16, within
    a few of its roundings, 2^-9 each.
    """
    found = differences(results, case, tiny_data)
    assert 1e-4 < found["gradient"] < (0.1 if case in ROUNDED else 5e-2)
    assert found["loss"] < 5e-3
    assert found["test"] < (5e-3 if case in ROUNDED else 1e-2)
    if case in ROUNDED:
        weights = load_file(results / case.name / "model.safetensors")
        assert {str(value.dtype) for value in weights.values()} == {"torch.bfloat16"}
    elif case.strategy == "fsdp":
        gradients = load_file(results / case.name / "gradients.safetensors")
        blocks = {name: value for name, value in gradients.items() if name.startswith("layers.")}
        assert blocks
        sums = [name for name, value in blocks.items() if not value.equal(value.bfloat16().float())]
        assert sums == [*blocks], "bf16 gradients are summed in float32"
