"""What people write by mistake into the settings: one sentence that names the key and what would work."""

import pytest

from shardlab.errors import Unsupported, UserError
from shardlab.settings import load, resolve

MNIST = {"workloads": ["mnist"], "strategies": ["ddp"]}
CONFIGURATIONS = [
    ({"recipe": {"optimizer": {"learning_rate": float("inf")}}}, ["learning_rate", "finite number"]),
    ({"recipe": {"optimizer": {"learning_rate": 1e30}}}, ["learning_rate", "less than or equal to 1000000"]),
    ({"recipe": {"clip_norm": float("nan")}}, ["clip_norm", "finite number"]),
    ({"recipe": {"schedule": {"gamma": float("inf")}}}, ["gamma", "finite number"]),
    ({"recipe": {"optimizer": {"weight_decay": float("inf")}}}, ["weight_decay", "finite number"]),
    ({"recipe": {"optimizer": {"name": "adam", "betas": [0.9, 1.0]}}}, ["betas.1", "less than 1"]),
    ({"seed": 10**23}, ["seed", "less than"]),
    ({"seed": True}, ["seed", "valid integer"]),
    ({"ranks_per_node": True}, ["ranks_per_node", "valid integer"]),
    ({"workloads": "mlp"}, ["workloads", "write a list: [mlp]"]),
    ({"workloads": []}, ["workloads", "name at least one"]),
    ({"workloads": ["mlp", "mlp"]}, ["workloads", "mlp stands twice"]),
    ({"strategies": ["single", "ddp", "single"]}, ["strategies", "single stands twice"]),
    ({"twins": True}, ["`twins` is True", "write a number"]),
    ({"recipe": {"max_steps": True}}, ["`max_steps` is True", "write a number"]),
    ({"recipe": {"optimizer": {"learning_rate": True}}}, ["`optimizer.learning_rate` is True"]),
    ({"recipe": {"optimizer": {"name": "adam", "betas": [0.9, False]}}}, ["`optimizer.betas.1` is False"]),
    ({"site_settings": {"figures": {"matrix_tflops": {"float32": True}}}}, ["`figures.matrix_tflops.float32`"]),
    ({"recipe": {"optimizer": {"momentum": 0.9}}}, ["config: recipe: `optimizer` is", "adamw takes no momentum"]),
    ({"sweep": {"tp": [2]}, "strategies": ["single", "zero1"]}, ["sweep: tp varies none of single, zero1"]),
    ({"recipe": 3}, ["recipe", "write keys and values"]),
    (["mlp"], ["keys and values"]),
    ({"workload": ["mlp"]}, ["`workload`", "did you mean `workloads`"]),
    ({"workloads": ["lama2"]}, ["lama2", "did you mean llama2"]),
    ({"workloads": []}, ["workloads"]),
    ({"strategies": ["fsdp2"]}, ["fsdp2", "did you mean fsdp"]),
    ({"site": "locl"}, ["locl", "did you mean local"]),
    ({"data": "hubb"}, ["`data`", "'embedded' or 'hub'"]),
    ({"size": "large"}, ["large", "small, source"]),
    ({"seed": -1}, ["`seed`", "-1"]),
    ({"nodes": 0}, ["`nodes`", "greater than 0"]),
    ({"recipe": {"epoch": 3}}, ["`epoch`", "did you mean `epochs`"]),
    ({"recipe": {"optimizer": {"learning_rate": 0}}}, ["`optimizer.learning_rate`"]),
    ({"recipe": {"optimizer": {"name": "adamx"}}}, ["`optimizer.name`", "did you mean adam"]),
    ({"recipe": {"optimizer": {"name": "sgd", "betas": [0.9, 0.95]}}}, ["`optimizer`", "sgd takes no betas"]),
    ({"recipe": {"schedule": {"name": "cosin"}}}, ["`schedule.name`", "did you mean cosine"]),
    ({"recipe": {"global_batch": 1}}, ["global_batch 1", "2 or more"]),
]
SWEEPS = [
    ({"lerning_rate": [1]}, "there is no key 'lerning_rate'; did you mean learning_rate?"),
    ({"name": ["adam"]}, "there is no key 'name'; known: optimizer.name, schedule.name"),
    ({"seed": []}, "seed: the list is empty"),
    ([], "the list is empty"),
    (
        {"seed": {"first": 1, "last": 2000}},
        "2,000 variants of 1 strategies and 1 workloads are 2,000 runs, more than",
    ),
    ({"seed": {"first": 1, "last": 1e12}}, "more than 100,000 values"),
    ({"seed": {"frist": 1, "last": 2}}, "config: sweep: seed: unknown key `frist`; did you mean `first`?"),
    ({"seed": {"last": 2}}, "config: sweep: seed: the key `first` is missing"),
    ({"seed": {"first": 3, "last": 2}}, "config: sweep: seed is {'first': 3, 'last': 2}; last is below first"),
    ({"recipe": {"optimizer": {"learning_rate": [1]}}}, "write recipe.optimizer.learning_rate: [...]"),
    ({"optimizer": {"betas": {"first": 1, "last": 2}}}, "write optimizer.betas: [...]"),
    ({"recipe.optimizer": [1]}, "write recipe.optimizer.name: [...]"),
    ({"learning_rate": [True]}, "learning_rate cannot be True: write a number"),
    ({"betas": [[0.9, False]]}, "betas cannot be [0.9, False]: write a number"),
    ({"learning_rate": {"first": 0, "last": 2, "count": 3, "scale": "log"}}, "a first above 0"),
    ({"learning_rate": [-1]}, "learning_rate cannot be -1: input should be greater than 0"),
    ({"learning_rate": [0.1, "1e-1"]}, "a value stands twice"),
    ({"learning_rate": [1], "recipe.optimizer.learning_rate": [2]}, "learning_rate stands twice"),
    ({"compile_backend": ["a/b"]}, "becomes part of a file's name"),
    ({"size": ["huge"]}, "there is no size 'huge'"),
    ({"tp": [3]}, "no variant can be"),
    (3, "3 is not keys with lists"),
]
STRATEGIES = [
    ({"dp_shard": 3}, {}, UserError, ["do not divide the world of 2 ranks", "multiple of 3"]),
    ({"dp_replicate": 1}, {}, UserError, ["do not divide the world"]),
    ({"dp_shard": -1, "dp_replicate": -1}, {}, UserError, ["only one degree can be -1"]),
    ({"dp_replicate": 1, "tp": 2}, {}, UserError, ["needs dp_shard", "dp_shard: 1"]),
    ({"dp_shard": 0}, {}, UserError, ["a degree is a number from 1"]),
    ({"dp_shard": -1, "tp": 4, "min_ranks": 6}, {}, UserError, ["do not divide the world of 6"]),
    ({"dp_shard": -1, "tp": 8, "min_ranks": 8}, {}, UserError, ["tp 8 does not divide heads 4", "tp can be 1, 2."]),
    ({"cpu_offload": True, "dp_replicate": -1}, {}, UserError, ["cpu_offload needs dp_shard"]),
    ({"engine": "deepspeed"}, {}, UserError, ["config"]),
    ({"engine": "deepspeed", "config": "config/deepspeed/zero9.json"}, {}, UserError, ["zero9.json", "zero1.json"]),
    ({"dp_shrad": 2}, {}, UserError, ["`dp_shrad`", "did you mean `dp_shard`"]),
    ({"pp": 2, "microbatches": 1}, {}, UserError, ["1F1B needs 2 microbatches or more; microbatches is 1"]),
    ({"pp": 2, "schedule": "Interleaved1F1B", "microbatches": 5}, {}, UserError, ["a multiple of 2 microbatches"]),
    ({"pp": -1}, {"ranks_per_node": 8}, Unsupported, ["can be cut into 4 pieces, and mine needs 8"]),
    ({"pp": -1, "dp_replicate": 2}, {"ranks_per_node": 4}, UserError, ["add dp_shard: 1"]),
    ({"pp": 2, "tp": 2, "sequence_parallel": True}, {"ranks_per_node": 4}, Unsupported, ["across pipeline stages"]),
    ({"sequence_parallel": True, "dp_shard": -1}, {}, UserError, ["need tp"]),
    ({"one_process": "mp", "tp": 2}, {}, UserError, ["one_process is one rank and takes no degrees; remove tp"]),
    ({"one_process": "dp"}, {"recipe": {"compile": "blocks"}}, Unsupported, ["use ddp"]),
    ({"dp_shard": -1}, {"recipe": {"precision": "fp16"}}, Unsupported, ["set recipe.precision to bf16"]),
    ({"tp": 2}, {"recipe": {"precision": "float8"}}, Unsupported, ["float8 goes with neither"]),
    (
        {"pp": 2, "schedule": "ZBVZeroBubble"},
        {"recipe": {"activation_checkpointing": "full"}},
        Unsupported,
        ["choose another schedule"],
    ),
]
NAMES = [
    ("ddp", "mnist@learning_rate=1e-3", "is written mnist@learning_rate=0.001; call it that"),
    ("ddp", "mnist@seed=2@learning_rate=0.1", "is written mnist@learning_rate=0.1@seed=2"),
    ("ddp", "mnist@sed=1", "there is no key 'sed'; did you mean seed?"),
    ("ddp", "mnist@tp=2", "tp varies strategies"),
    ("ddp@seed=2", "mnist", "seed varies workloads"),
    ("single@tp=2", "mnist", "single is the same with any tp; ask for single"),
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
        resolve.run(load.config(config), "mine", "llama2")
    check(str(raised.value), words)


@pytest.mark.parametrize(("strategy", "workload", "words"), NAMES)
def test_a_name_that_is_none(strategy, workload, words):
    with pytest.raises(UserError) as raised:
        resolve.run(load.config(MNIST), strategy, workload)
    check(str(raised.value), [words])
