"""Mistakes in settings: one sentence that names the key and what would work."""

import pytest

from shardlab.errors import Unsupported, UserError
from shardlab.settings import load, resolve

MNIST = {"workloads": ["mnist"], "strategies": ["ddp"]}
CONFIGURATIONS = [
    ({"recipe": {"optimizer": {"learning_rate": float("inf")}}}, ["learning_rate", "finite number"]),
    ({"recipe": {"optimizer": {"learning_rate": 1e30}}}, ["learning_rate", "less than or equal to 1000000"]),
    ({"recipe": {"optimizer": {"name": "adam", "betas": [0.9, 1.0]}}}, ["betas.1", "less than 1"]),
    ({"seed": True}, ["seed", "valid integer"]),
    ({"workloads": "mlp"}, ["workloads", "write a list: [mlp]"]),
    ({"workloads": ["mlp", "mlp"]}, ["workloads", "mlp appears twice"]),
    ({"noise_floor_runs": True}, ["`noise_floor_runs` is True", "write a number"]),
    ({"recipe": {"optimizer": {"name": "adam", "betas": [0.9, False]}}}, ["`optimizer.betas.1` is False"]),
    ({"recipe": {"optimizer": {"momentum": 0.9}}}, ["config: recipe: `optimizer` is", "adamw takes no momentum"]),
    ({"sweep": {"tp": [2]}, "strategies": ["single", "zero1"]}, ["sweep: tp has no effect on single, zero1"]),
    ({"recipe": 3}, ["recipe", "write keys and values"]),
    (["mlp"], ["keys and values"]),
    ({"workload": ["mlp"]}, ["`workload`", "did you mean `workloads`"]),
    ({"workloads": ["lama2"]}, ["lama2", "did you mean llama2"]),
    ({"site": "locl"}, ["locl", "did you mean local"]),
    ({"size": "large"}, ["large", "small, source"]),
    ({"seed": -1}, ["`seed`", "-1"]),
    ({"nodes": 2}, ["2 nodes are requested, but a run at site local can have at most 1"]),
    ({"nodes": 2, "site_settings": {"nodes_max": 4}}, ["site local has no `srun:`"]),
    ({"recipe": {"optimizer": {"name": "sgd", "nesterov": True}}}, ["`optimizer`", "nesterov needs momentum"]),
    (
        {"recipe": {"groups": {"head": {"decay": 0.1}}}},
        ["unknown key `groups.head.decay`", "known keys: learning_rate_factor"],
    ),
    ({"recipe": {"lr_schedule": {"name": "cosin"}}}, ["`lr_schedule.name`", "did you mean cosine"]),
    ({"recipe": {"global_batch_size": 1}}, ["global_batch_size 1", "lower nodes or ranks_per_node", "2 or more"]),
]
SWEEPS = [
    ({"lerning_rate": [1]}, "there is no key 'lerning_rate'; did you mean learning_rate?"),
    ({"name": ["adam"]}, "there is no key 'name'; known: lr_schedule.name, optimizer.name"),
    ([], "the list is empty"),
    ({"seed": {"first": 1, "last": 2000}}, "2,000 variants of 1 strategies and 1 workloads are 2,000 runs, more than"),
    ({"seed": {"first": 1, "last": 1e12}}, "more than 100,000 values"),
    ({"seed": {"last": 2}}, "config: sweep: seed: the key `first` is missing"),
    ({"seed": {"first": 3, "last": 2}}, "config: sweep: seed is {'first': 3, 'last': 2}; last is below first"),
    ({"recipe": {"optimizer": {"learning_rate": [1]}}}, "write recipe.optimizer.learning_rate: [...]"),
    ({"recipe.optimizer": [1]}, "write recipe.optimizer.name: [...]"),
    ({"learning_rate": [True]}, "learning_rate cannot be True: write a number"),
    ({"learning_rate": {"first": 0, "last": 2, "count": 3, "scale": "log"}}, "a first above 0"),
    ({"learning_rate": [-1]}, "learning_rate cannot be -1: input should be greater than 0"),
    ({"learning_rate": [0.1, "1e-1"]}, "a value appears twice"),
    ({"learning_rate": [1], "recipe.optimizer.learning_rate": [2]}, "learning_rate appears twice"),
    ({"compile_backend": ["a/b"]}, "becomes part of a file name"),
    ({"size": ["huge"]}, "there is no size 'huge'"),
    ({"tp": [3]}, "no variant is possible"),
]
STRATEGIES = [
    ({"dp_shard": 3}, {}, UserError, ["do not divide the world of 2 ranks", "multiple of 3"]),
    ({"dp_replicate": 1}, {}, UserError, ["do not divide the world"]),
    ({"dp_shard": -1, "dp_replicate": -1}, {}, UserError, ["only one degree can be -1"]),
    ({"dp_replicate": 1, "tp": 2}, {}, UserError, ["needs dp_shard", "dp_shard: 1"]),
    ({"dp_shard": 0}, {}, UserError, ["a degree must be at least 1"]),
    ({"dp_shard": -1, "tp": 4, "min_ranks": 6}, {}, UserError, ["do not divide the world of 6"]),
    ({"dp_shard": -1, "tp": 8, "min_ranks": 8}, {}, UserError, ["tp 8 does not divide heads 4", "tp can be 1, 2."]),
    ({"cpu_offload": True, "dp_replicate": -1}, {}, UserError, ["cpu_offload needs dp_shard or cp; add it, or remove"]),
    ({"sequence_parallel": True, "dp_shard": -1}, {}, UserError, ["sequence_parallel needs tp"]),
    ({"context": "ring", "dp_replicate": -1}, {}, UserError, ["context needs cp"]),
    ({"n_microbatches": 2, "single_process": "mp"}, {}, UserError, ["n_microbatches needs pp"]),
    ({"engine": "deepspeed", "config": "config/deepspeed/zero9.json"}, {}, UserError, ["zero9.json", "zero1.json"]),
    ({"pp": 2, "n_microbatches": 1}, {}, UserError, ["1F1B needs at least 2 microbatches; n_microbatches is 1"]),
    (
        {"pp": 2, "pipeline_schedule": "Interleaved1F1B", "n_microbatches": 5},
        {},
        UserError,
        ["a multiple of 2 microbatches"],
    ),
    ({"pp": -1}, {"ranks_per_node": 8}, Unsupported, ["can be split into 4 segments, and mine needs 8"]),
    ({"pp": 2, "tp": 2, "sequence_parallel": True}, {"ranks_per_node": 4}, Unsupported, ["across pipeline stages"]),
    (
        {"single_process": "mp", "tp": 2},
        {},
        UserError,
        ["single_process runs on one rank and takes no degrees; remove tp"],
    ),
    (
        {"cp": 3},
        {"ranks_per_node": 3},
        Unsupported,
        ["sequence_length 64", "into 6 pieces, 2 for each", "multiple of 6"],
    ),
    (
        {"cp": 8, "context": "ulysses"},
        {"ranks_per_node": 8},
        Unsupported,
        ["heads 4", "can be 1, 2, 4", "gather or ring"],
    ),
    ({"dp_replicate": -1, "ep": 2}, {}, UserError, ["ep also needs dp_shard; add dp_shard: 1"]),
    ({"dp_shard": -1, "ep": 2}, {}, Unsupported, ["llama2 has no experts for ep to split", "under `experts:`"]),
    ({"single_process": "dp"}, {"recipe": {"compile": "blocks"}}, Unsupported, ["use ddp"]),
    ({"dp_shard": -1}, {"recipe": {"precision": "fp16"}}, Unsupported, ["set recipe.precision to bf16"]),
    (
        {"pp": 2, "pipeline_schedule": "ZBVZeroBubble"},
        {"recipe": {"activation_checkpointing": "full"}},
        Unsupported,
        ["choose another schedule"],
    ),
    *(
        (degrees, {"workloads": ["moe"], "ranks_per_node": ranks}, Unsupported, [words])
        for degrees, ranks, words in (
            ({"dp_shard": -1, "tp": 2, "ep": 4}, 4, "ep 4 does not divide the 2 data-parallel ranks"),
            ({"dp_shard": -1, "ep": 2}, 3, "the 3 data-parallel ranks (3 with different shards); ep can be 1, 3."),
            ({"dp_shard": -1, "ep": -1}, 3, "ep 3 does not divide experts 8 of workload moe; ep can be 1, 2, 4, 8."),
            ({"dp_shard": -1, "ep": 2}, 6, "and the 3 ranks with the same ones divide neither their number nor hidden"),
        )
    ),
    ({"find_unused_parameters": True}, {}, UserError, ["find_unused_parameters needs dp_replicate"]),
    (
        {"find_unused_parameters": True, "dp_shard": -1, "tp": 2},
        {},
        UserError,
        ["works with dp_replicate and dp_shard"],
    ),
]
NAMES = [
    ("ddp", "mnist@learning_rate=1e-3", "must be written mnist@learning_rate=0.001; use that"),
    ("ddp", "mnist@seed=2@learning_rate=0.1", "must be written mnist@learning_rate=0.1@seed=2"),
    ("ddp", "mnist@sed=1", "there is no key 'sed'; did you mean seed?"),
    ("ddp", "mnist@tp=2", "tp varies strategies"),
    ("ddp@seed=2", "mnist", "seed varies workloads"),
]


def check(said, words):
    assert all(word in said for word in words), said
    assert "\n" not in said


@pytest.mark.parametrize(("values", "words"), CONFIGURATIONS)
def test_a_configuration(values, words):
    with pytest.raises(UserError) as raised:
        resolve.matrix(load.config(values))
    check(str(raised.value), words)


@pytest.mark.parametrize(("swept", "words"), SWEEPS)
def test_a_sweep(swept, words):
    with pytest.raises(UserError) as raised:
        resolve.matrix(load.config(MNIST | {"sweep": swept}))
    check(str(raised.value), [words])


@pytest.mark.parametrize(("entry", "config", "error", "words"), STRATEGIES)
def test_a_strategy(site, strategy, entry, config, error, words):
    strategy("mine", **entry)
    with pytest.raises(error) as raised:
        resolve.run(load.config(config), "mine", config.get("workloads", ["llama2"])[0])
    check(str(raised.value), words)


@pytest.mark.parametrize(("strategy", "workload", "words"), NAMES)
def test_a_name_that_is_none(strategy, workload, words):
    with pytest.raises(UserError) as raised:
        resolve.run(load.config(MNIST), strategy, workload)
    check(str(raised.value), [words])
