"""Plans: time from the site's figures, what fits, the recommendation; messages about what is unknown."""

from types import SimpleNamespace

import pytest

from helpers.common import tiny_run
from helpers.keys import CHANGES
from shardlab.cli import plan as plan_program
from shardlab.measure.memory import KINDS
from shardlab.records import plan
from shardlab.report import plan_table
from shardlab.settings import load, resolve
from shardlab.settings.recipe import Recipe
from shardlab.settings.sites import Hardware
from shardlab.workflow.call_runs import CallRuns

GIB = 2**30
KNOWN = {
    "device_memory_gib": 80,
    "matrix_tflops": {"float32": 10.0},
    "memory_gb_per_second": 1000,
    "node_gb_per_second": 100,
    "network_gb_per_second": 10,
}


def run_of(strategy, **config):
    return resolve.run(load.config(config), strategy, "llama2")


def estimate(peak=40 * GIB, weights=10 * GIB, traffic=(), flops=10**14):
    kinds = dict.fromkeys(KINDS, 0)
    held = kinds | {"weights": weights}
    return {
        "ranks": [0],
        "tensor_bytes": [{"peak": peak, "at_peak": held, "largest": held}],
        "traffic": [{"axis": axis, "collective": "all_reduce", "bytes": size} for axis, size in traffic],
        "flops_per_step": flops,
        "parameters": 1,
    }


def made(strategy="ddp", figures=KNOWN, recomputation="none", **what):
    figures = Hardware(**figures)
    seen = estimate(**what)
    return plan.make(run_of(strategy), figures, seen, recomputation, fits=plan.fits(seen, figures), prepared=True)


def test_the_update_reads_and_writes_the_state_of_the_fullest_rank():
    """Weights and optimizer are read and written; gradients are read, master weights written."""
    seen = estimate(flops=0)
    kinds = {"weights": 8, "optimizer": 16, "gradients": 4, "master_weights": 2, "activations": 99}
    held = seen["tensor_bytes"][0]["largest"] | {kind: size * 10**9 for kind, size in kinds.items()}
    seen["tensor_bytes"].append({"peak": 1, "at_peak": held, "largest": held})
    seen["tensor_bytes"][0]["largest"] = held | {"weights": 10**9}
    seconds, _ = plan.step_time(run_of("ddp"), Hardware(**KNOWN), seen, "none")
    assert seconds == pytest.approx((2 * 8 + 2 * 16 + 4 + 2) / 1000)


def test_the_time_is_the_longer_of_products_and_traffic_then_the_update():
    update = 2 * 10 * GIB / 1e12
    products = 1e14 / (2 * 1e13)
    assert made().step_seconds == pytest.approx(products + update)
    assert made(recomputation="full").step_seconds == pytest.approx(products * 4 / 3 + update)
    assert made(traffic=[("dp_replicate", 100e9)]).step_seconds == pytest.approx(products + update), "sent beside them"
    assert made(traffic=[("dp_replicate", 900e9)]).step_seconds == pytest.approx(9 + update), "longer than they take"
    assert made("tp", traffic=[("tp", 100e9)]).step_seconds == pytest.approx(products + 1 + update), "waited for"
    # Two micro-batches on two ranks, by 1F1B: each computes two thirds of the time.
    parts = run_of("pp").options.n_microbatches
    assert made("pp").step_seconds == pytest.approx(products * (parts + 1) / parts + update), "with its bubble"


def test_between_nodes_the_network_counts():
    """Context-parallel groups may span nodes; where only some of them do, all wait for the network."""
    figures = Hardware(**KNOWN)
    for name, ranks, axis, gb_per_second in (
        ("fsdp_tp", 4, "tp", 100),
        ("fsdp_tp", 4, "dp_shard", 10),
        ("fsdp_cp", 3, "cp", 10),
    ):
        values = {"nodes": 2, "ranks_per_node": ranks, "site_settings": {"nodes_max": 2, "srun": {}}}
        # More bytes than the products hide.
        sent = estimate(traffic=[(axis, 1e13)], weights=0, flops=0)
        seconds, _ = plan.step_time(run_of(name, **values), figures, sent, "none")
        assert seconds == pytest.approx(1e13 / gb_per_second / 1e9), (name, ranks, axis)


def test_what_to_take():
    ddp, fsdp = made(peak=79 * GIB), made("fsdp", peak=78 * GIB)  # 2 GiB are left free
    assert (ddp.fits, fsdp.fits) == (False, True)
    assert plan_table.choice([ddp, fsdp]).startswith("Use fsdp: predicted to be the fastest that fits")
    assert plan_table.choice([ddp]).startswith("Nothing fits: ddp needs least, 79 GiB per rank")
    sizes, no_time = {"ddp": 90, "fsdp": 60, "tp": 50}, {"device_memory_gib": 80}
    plans = [made(name, figures=no_time, peak=size * GIB) for name, size in sizes.items()]
    thumb = "use fsdp, which fits (60 GiB per rank); tp needs the least memory, 50 GiB."
    assert plan_table.choice(plans) == f"By the rule of thumb, {thumb}"


@pytest.mark.parametrize(
    ("peak", "mode", "sentence"),
    [
        (90, "full", "its plan says 90 GiB per rank at best; use more ranks"),
        (70, "full", "as it is; set recipe.activation_checkpointing to full (70 GiB)"),
        (70, "none", ""),
    ],
)
def test_a_call_warns_of_what_does_not_fit_or_refuses_it(tmp_path, monkeypatch, peak, mode, sentence):
    figures = {"device_memory_gib": 80}
    monkeypatch.chdir(tmp_path)

    def resolved(**more):
        config = {"workloads": ["llama2"], "site_settings": {"hardware": figures}} | more
        run = SimpleNamespace(strategy="ddp", workload="llama2")
        return CallRuns(config, []).planned(run, SimpleNamespace(proofs=[]))

    made(figures=figures, recomputation=mode, peak=peak * GIB).write(tmp_path / "results/plans/ddp/llama2/plan.json")
    run, warned = resolved()
    assert warned.startswith("warning: ") == bool(sentence)
    assert sentence in warned
    refused = (None, warned.replace("warning", "error")) if sentence else (run, "")
    assert resolved(on_memory_overflow="refuse") == refused
    assert resolved(seed=2)[1] == "", "the plan of another run"


SHARED = {"lr_schedule", "epochs", "max_steps", "keep_best"}
SHARED |= {"checkpoint_interval_steps", "checkpoint_interval_minutes", "keep_last_checkpoints"}


def test_runs_share_a_plan_only_if_no_tensor_differs():
    """Say of a new key whether runs that differ in it share a plan."""
    run = tiny_run("llama2", "fsdp")
    others = {key: tiny_run("llama2", "fsdp", **{key: CHANGES["recipe"][key]}) for key in Recipe.model_fields}
    assert {key for key, other in others.items() if plan.cost(run) == plan.cost(other)} == SHARED
    assert plan.cost(run) == plan.cost(run.model_copy(update={"seed": 7, "sources": {}}))
    on_gpus = run.model_copy(update={"site": run.site.model_copy(update={"device": "cuda"})})
    others = [on_gpus, tiny_run("llama2", "fsdp", 4), tiny_run("llama2", "fsdp_offload")]
    others.append(run.model_copy(update={"model": run.model.model_copy(update={"args": {}})}))
    assert len({plan.cost(each) for each in (run, *others)}) == len(others) + 1


def test_a_plan_says_the_least_recomputation_that_fits(tmp_path, monkeypatch):
    run = run_of("ddp")
    sizes = {"none": 90 * GIB, "selective": 85 * GIB, "full": 70 * GIB}
    planned = []

    def simulated(runs, cores):
        modes = [each.recipe.activation_checkpointing for each, _ in runs]
        planned.extend(modes)
        return [estimate(peak=sizes[mode]) for mode in modes]

    monkeypatch.setattr("shardlab.plan.simulate.simulate", simulated)
    for gib, steps, mode in ((80, [*sizes], "full"), (95, ["none"], "none"), (None, ["none"], None)):
        planned.clear()
        site = load.site(load.config({"site_settings": {"hardware": {"device_memory_gib": gib}}}))
        (found,), _ = plan_program.made([run], site, tmp_path, 1)
        assert (planned, found.activation_checkpointing) == (steps, mode)
