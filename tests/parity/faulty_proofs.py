"""Prove strategies on a tiny model, some of them with a fault: prints {case: [verdict, reason]} as JSON.

    python faulty_proofs.py FOLDER MIXED OTHER...

In a process of its own: it forks the ranks. FOLDER has the tiny model's config.json, MIXED is a run.json of a model
that mixes the documents of a row, OTHER that of a model that is no causal one.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

from shardlab.errors import UserError
from shardlab.parallel import ddp
from shardlab.parallel.native import NativeEngine
from shardlab.proof import prove, tiny_config
from shardlab.proof.step_on_ranks import Written, one_process, under_strategy
from shardlab.settings.types import read_run


def not_reduced(run, folder):
    """DDP that leaves one kind of weights as each rank computed it."""

    def apply(model, mesh, **_):
        names = [name for name, _ in model.named_parameters() if "up_proj" in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return DistributedDataParallel(model, device_mesh=mesh)

    with mock.patch.object(ddp, "apply", apply):
        return under_strategy(run, folder)


def updated_twice(run, folder):
    """An optimizer that takes two steps."""
    step = torch.optim.AdamW.step
    with mock.patch.object(torch.optim.AdamW, "step", lambda self: (step(self), step(self))):
        return under_strategy(run, folder)


def counted_twice(run, folder):
    """A gradient norm that one rank's part enters twice."""
    with mock.patch.object(NativeEngine, "sum_over_parts", lambda _, value: 2 * value):
        return under_strategy(run, folder)


def doubled_loss(run, folder):
    """A loss that is not that of its gradients."""
    step = NativeEngine.forward_backward
    with mock.patch.object(NativeEngine, "forward_backward", lambda *args, **named: 2 * step(*args, **named)):
        return under_strategy(run, folder)


def crashed(run, folder):
    """One rank raises, while the others wait for it."""
    if dist.get_rank() == 1:
        raise ZeroDivisionError("of one rank")
    return under_strategy(run, folder)


def died(run, folder):
    """One rank ends without an exception, as if a library had ended it."""
    if dist.get_rank() == 1:
        os.write(2, b"  what():  other sizes\nlater\n")
        os.abort()
    return under_strategy(run, folder)


CASES = {
    "ddp": ("ddp", under_strategy),
    "not_reduced": ("ddp", not_reduced),
    "crashed": ("ddp", crashed),
    "died": ("ddp", died),
    "after_the_crash": ("fsdp", under_strategy),
    "updated_twice": ("ddp", updated_twice),
    "counted_twice": ("fsdp", counted_twice),
    "doubled_loss": ("ddp", doubled_loss),
}


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + number / 100 for number in range(48)],
    "long_factor": [1.0 + number for number in range(48)],
}


def proven(config, strategy, *written):
    """The verdict on a tiny model of a configuration."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_config.write(config, Path(folder))
        (proof,) = prove.prove(Path(folder), {strategy: None}, *written)
    return [proof.verdict, proof.reason]


def of_models():
    """Of models that have something of their own."""
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    found = {"longrope_cp": proven(transformers.Phi3Config(rope_parameters=LONGROPE, **lengths), "cp")}
    dropping = transformers.OPTConfig(layerdrop=0.1)
    found["layerdrop_ddp"] = proven(dropping, "ddp", Written([], {}, layerdrop=tiny_config.layerdrop(dropping)))
    found["other_loss"] = proven(transformers.BambaConfig(z_loss_coefficient=0.1), "ddp")
    chained = transformers.ConvNextConfig(depths=[1, 1, 1, 2])
    found["blocks_in_blocks"] = proven(chained, "fsdp", Written([], {}, "classification"))
    rounding = transformers.MobileNetV2Config(depth_multiplier=0.35)
    found["rounding_ddp"] = proven(rounding, "ddp", Written([], {}, "classification", sync_batch_norm=True))
    averaging = transformers.ResNetConfig(depths=[1], hidden_sizes=[8], embedding_size=8)
    for shared in (False, True):
        written = Written([], {}, "classification", sync_batch_norm=shared)
        found[f"shared_{shared}_ddp"] = proven(averaging, "ddp", written)
    predicting = transformers.ProphetNetConfig(num_buckets=8)  # whose masks only float32 holds
    references = {"nan": (predicting, one_process), "crashed": (averaging, crashed)}
    for case, (config, step) in references.items():
        with mock.patch.object(prove, "one_process", step):
            try:
                proven(config, "ddp", Written([], {}, tiny_config.task_of(config)))
            except UserError as error:
                found[f"reference_{case}"] = ["", str(error)]
    return found


def packed(folder, mixed):
    """Rows of several documents: a strategy that trains them as documents alone, and a model that does not."""
    run, kept = read_run(mixed), mixed.with_name("packed.json")
    (proof,) = prove.prove(folder, {"cp_ring": None}, Written([], {}, run.task))
    found = {"packed_cp_ring": [proof.verdict, proof.reason]}
    (proof,) = prove.check(run, ["single"], kept)
    return found | {"mixed": [proof.verdict, json.loads(kept.read_text())["refused"]["single"]]}


def main():
    torch.set_num_threads(1)
    found = {}
    for case, (strategy, step) in CASES.items():
        with mock.patch.object(prove, "under_strategy", step):
            (proof,) = prove.prove(Path(sys.argv[1]), {strategy: None})
        found[case] = [proof.verdict, proof.reason or f"{proof.held:.0%}"]
    found |= of_models()
    found |= packed(Path(sys.argv[1]), Path(sys.argv[2]))
    for other in map(Path, sys.argv[3:]):
        run = read_run(other)
        proofs = prove.check(run, ["tp", "pp"], other.with_suffix(".proofs"))
        found |= {f"{run.task}_{proof.strategy}": [proof.verdict, proof.reason] for proof in proofs}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
