"""One rank of a parity group: trains many cases in one process.

Each case names its run, data, weights and output folder.
"""

import gc
import json
from pathlib import Path
from unittest import mock

import foreign  # noqa: F401  (whose models cases name)
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from shardlab import parallel
from shardlab.runtime import distributed, tasks
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Run
from shardlab.train import evaluation, loop
from shardlab.train.capture import capture


def main(cases):
    if cases:
        distributed.start(SiteRuntime(device=cases[0]["run"]["site"]["device"]), timeout_seconds=60)
    for case in cases:
        run = Run.model_validate(case["run"])
        output = Path(case["output"])
        gc.collect()  # the model before this one, whose parts point to each other, does not count as this one's memory
        if run.world_size == 1 or dist.get_rank() == 0:
            print(f"case {output.name}", flush=True)
        if case["evaluate"]:
            evaluate_and_weigh(run, Path(case["data"]), Path(case["evaluate"]), output)
            continue
        torch._dynamo.reset()  # else a case runs eagerly when those before it have filled the cache
        files = Path(case["data"]), Path(case["weights"]), output
        if case["capture"]:
            capture(run, *files, case["like"] and Run.model_validate(case["like"]))
            continue
        resume = case["resume"] and Path(case["resume"])
        with mock.patch.object(loop, "train_step", watched(loop.train_step)):
            loop.train(run, *files, {}, loop.TrainOptions(resume=resume, on_gradients=keep_first_gradients(output)))
    distributed.finish()


def watched(train_step):
    """A simulated device refuses to be waited for from the third step on; in the second DDP still sets things up."""

    def watching(engine, step, *args, **options):
        # The host does a part of an offloaded step, and a loop over experts needs their numbers of tokens.
        reads = engine.run.options.cpu_offload or engine.run.workload == "moe"
        refuses = engine.world.device.type == "sim" and step.number > 1 and not reads
        if refuses:
            torch.sim.forbid_host_reads(True)
        taken = train_step(engine, step, *args, **options)
        if refuses:
            torch.sim.forbid_host_reads(False)
        return taken

    return watching


def evaluate_and_weigh(run, data, weights, output):
    """Write the sharded evaluation's report, and the bytes of the weights that each rank held before it."""
    world = distributed.world(run)
    task = tasks.task_for(run, data, world.device)
    engine = parallel.build(run, task, world, weights)
    if run.engine == "deepspeed":
        parts = [getattr(parameter, "ds_tensor", parameter) for parameter in engine.plain.parameters()]
    else:
        parts = [getattr(parameter, "_local_tensor", parameter) for parameter in engine.parameters().values()]
    held = world.gather(sum(value.nbytes for value in parts))
    report = evaluation.evaluate_engine(run, engine, task, world)
    if distributed.is_main():
        (output / "test.json").write_text(json.dumps(report.model_dump() | {"held": held}))


def keep_first_gradients(output):
    """Observer that writes the whole gradient of every parameter at step 0."""

    def observe(step, engine):
        if step:
            return
        gradients = {name: gradient.detach().clone().contiguous() for name, gradient in engine.gradients()}
        if not dist.is_initialized() or dist.get_rank() == 0:
            save_file(gradients, output / "gradients.safetensors")

    return observe
