"""Files of finished runs, as the stages write them, without any training."""

import json

from shardlab.records import plan
from shardlab.records.reports import NoiseFloorReport, TestReport
from shardlab.records.timeline import Timeline
from shardlab.records.train_report import train_report
from shardlab.settings import run_identity
from shardlab.settings.precisions import PRECISIONS

BYTES = {"weights": 4, "master_weights": 0, "gradients": 0, "optimizer": 0, "activations": 3, "gathered": 0, "other": 2}
STEP = {"kind": "train", "step": 0, "samples": 5, "targets": 10, "loss": 1.0, "grad_norm": 1.0, "seconds": 0.1}
VALIDATION = {"kind": "validation", "step": 0, "loss": 3.0}


def planned(results, run, tensor_bytes, traffic=()):
    """The plan of a run that simulated its first ranks, one for each of ``tensor_bytes``."""
    estimate = {"ranks": [*range(len(tensor_bytes))], "tensor_bytes": tensor_bytes, "traffic": traffic, "parameters": 1}
    estimate |= {"flops_per_step": None}
    made = plan.make(run, estimate, "none", fits=None, prepared=True)
    made.write(results / "plans" / run.strategy / run.workload / "plan.json")


def with_twins(results, run, twins, **changed):
    """The noise floor of a ``single``; ``changed``: other keys than those of its ``finished``."""
    made = {"identity": run_identity.identity_of(run, "d"), "initial_weights": "i", "single_weights": "w"}
    made |= {"workload": run.workload, "scale": PRECISIONS[run.recipe.dtype].rounding}
    NoiseFloorReport(**made | changed, twins=twins).write(results / f"noise_floor/{run.workload}.json")


def measured(run, data="d", **more):
    """What a training measures for its train.json; ``more``: other keys."""
    return {
        "identity": run_identity.identity_of(run, data),
        "initial_weights": "i",
        "weights": "w",
        "hosts": ["here"],
        "devices": ["cpu"],
        "parameters": 1,
        "samples_per_rank": [5],
        "targets_per_rank": [10],
        "wall_seconds": 1.0,
        "tensor_bytes": [{"peak": 9, "at_peak": BYTES, "largest": BYTES}] * run.world_size,
        "peak_memory_bytes": [1],
        "peak_memory_kind": "process RSS",
        "flops_per_step": 60,
        "flops_formula": "six times ten",
        "device_peak_flops": None,
        "traffic": [],
        "checkpoints": 1,
    } | more


def finished(
    results,
    run,
    loss=2.0,
    data="d",
    initial="i",
    weights="w",
    evaluated="w",
    steps=(STEP,),
    timeline=None,
    choices=None,
    **more,
):
    """The files of a finished run; ``more``: keys of its train.json; ``timeline``: of its timeline.json; ``choices``:
    experts that the test tokens choose.
    """
    folder = results / run.strategy / run.workload
    records = [{"kind": "attempt", "step": 0, "time": "now"}, *steps, VALIDATION]
    found = measured(run, data, initial_weights=initial, weights=weights, **more)
    train_report(run, records, found).write(folder / "train.json")
    if timeline:
        Timeline(identity=run_identity.identity_of(run, data), step=2, **timeline).write(folder / "timeline.json")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    test = {"loss": loss, "metric_name": "mse", "metric_value": 1.0, "samples": 1, "targets": 2, "evaluation": "whole"}
    TestReport(
        workload=run.workload,
        **test,
        identity=run_identity.identity_of(run, data),
        weights=evaluated,
        untrained_loss=9.0,
        expert_choices=choices,
    ).write(folder / "test.json")
    folder.with_name(f"{folder.name}.done").touch()
