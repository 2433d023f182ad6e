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

from shardlab.parallel import ddp
from shardlab.proof import of_workload, prove, tiny_config
from shardlab.proof.step_on_ranks import under_strategy
from shardlab.proof.tiny_runs import Written
from shardlab.settings.types import read_run


def not_reduced(run, folder):
    """DDP that leaves one kind of weights as each rank computed it."""

    def apply(model, mesh, **_):
        names = [name for name, _ in model.named_parameters() if "up_proj" in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return DistributedDataParallel(model, device_mesh=mesh)

    with mock.patch.object(ddp, "apply", apply):
        return under_strategy(run, folder)


def counted_twice(run, folder):
    """A gradient norm that one rank's part enters twice."""
    from shardlab.parallel.native import NativeEngine

    with mock.patch.object(NativeEngine, "sum_over_parts", lambda _, value: 2 * value):
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
    "counted_twice": ("fsdp", counted_twice),
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
    found["other_loss"] = proven(transformers.BambaConfig(z_loss_coefficient=0.1), "ddp")
    averaging = transformers.ResNetConfig(depths=[1], hidden_sizes=[8], embedding_size=8)
    for shared in (False, True):
        written = Written([], {}, "classification", sync_batch_norm=shared)
        found[f"shared_{shared}_ddp"] = proven(averaging, "ddp", written)
    return found


def packed(folder, mixed, kept):
    """Rows of several documents: a strategy that trains them as documents alone, and a model that does not."""
    (proof,) = prove.prove(folder, {"cp": None}, Written([], {}, mixed.task))
    found = {"packed_cp": [proof.verdict, proof.reason]}
    (proof,) = of_workload.check(mixed, ["single"], kept)
    return found | {"mixed": [proof.verdict, json.loads(kept.read_text())["refused"]["single"]]}


def main():
    torch.set_num_threads(1)
    found = {}
    for case, (strategy, step) in CASES.items():
        with mock.patch.object(prove, "under_strategy", step):
            (proof,) = prove.prove(Path(sys.argv[1]), {strategy: None})
        found[case] = [proof.verdict, proof.reason or f"{proof.held:.0%}"]
    found |= of_models()
    mixed = read_run(Path(sys.argv[2]))
    found |= packed(Path(sys.argv[1]), mixed, Path(sys.argv[2]).with_name("packed.json"))
    for other in map(Path, sys.argv[3:]):
        run = read_run(other)
        proofs = of_workload.check(run, ["tp", "pp"], other.with_suffix(".proofs"))
        found |= {f"{run.task}_{proof.strategy}": [proof.verdict, proof.reason] for proof in proofs}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
