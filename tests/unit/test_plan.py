"""Plans: what fits, the recommendation, runs that share one."""

from types import SimpleNamespace

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
KNOWN = {"device_memory_gib": 80}


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
    return plan.make(run_of(strategy), seen, recomputation, fits=plan.fits(seen, figures), prepared=True)


def test_what_to_take():
    ddp, fsdp = made(peak=79 * GIB), made("fsdp", peak=78 * GIB)  # 2 GiB are left free
    assert (ddp.fits, fsdp.fits) == (False, True)
    assert plan_table.choice([ddp, fsdp]) == "By the rule of thumb, use fsdp, which fits (78 GiB per rank)."
    assert plan_table.choice([ddp]).startswith("Nothing fits: ddp needs least, 79 GiB per rank")
    sizes = {"ddp": 90, "fsdp": 60, "tp": 50}
    plans = [made(name, peak=size * GIB) for name, size in sizes.items()]
    thumb = "use fsdp, which fits (60 GiB per rank); tp needs the least memory, 50 GiB."
    assert plan_table.choice(plans) == f"By the rule of thumb, {thumb}"


def test_a_call_warns_of_what_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def resolved(**more):
        config = {"workloads": ["llama2"], "site_settings": {"hardware": KNOWN}} | more
        run = SimpleNamespace(strategy="ddp", workload="llama2")
        return CallRuns(config, []).planned(run, SimpleNamespace(proofs=[]))[1]

    for peak, mode, sentence in ((90, "full", "90 GiB per rank at best"), (70, "full", "set recipe"), (70, "none", "")):
        made(recomputation=mode, peak=peak * GIB).write(tmp_path / "results/plans/ddp/llama2/plan.json")
        warned = resolved()
        assert warned.startswith("warning: ") == bool(sentence)
        assert sentence in warned
    assert resolved(seed=2) == "", "the plan of another run"


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
