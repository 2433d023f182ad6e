"""The race of benchmarks/peers.py: all trainers do the same work, and one that does not is named."""

import sys
from unittest import mock

import peers
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainers import TRAINERS
from trainers.places import SIZES, prepare
from trainers.race import Race
from trainers.settings import Watch, same

from shardlab.errors import UserError
from shardlab.models import llama
from shardlab.settings.deepspeed import sized


@pytest.fixture
def one_rank(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_bare_loop_and_ours_train_with_the_same_settings(one_rank, tmp_path):
    place = tmp_path / "race"
    run = prepare(place, "ddp", "tiny", 6, nodes=1, ranks_per_node=1)
    output = place / "output"
    output.mkdir()
    reported = peers.race(run, place, output, ["bare", "shardlab"])
    assert {name: len(steps) for name, steps in reported["seconds"].items()} == {"bare": 6, "shardlab": 6}
    found = reported["settings"]
    assert found["wrapper"] == "DDP"
    assert found["find_unused_parameters"] is False
    assert found["gradient_as_bucket_view"] is True
    assert (found["samples of a rank"], found["forward passes"], found["autocast"]) == (4, 1, False)
    assert (found["optimizer"], found["fused"], found["weights"]) == ("AdamW", "True", "float32")
    assert int(found["buckets, bytes"]) == sum(4 * value.numel() for value in llama.Model(**SIZES["tiny"]).parameters())


@pytest.mark.parametrize(
    ("trainer", "module", "takes", "key"),
    [("bare", "deepspeed", "initialize", "config"), ("hugging_face", "transformers", "TrainingArguments", "deepspeed")],
)
def test_deepspeed_gets_bucket_sizes_as_numbers_and_those_of_ours(monkeypatch, tmp_path, trainer, module, takes, key):
    """Only Shardlab knows "auto" for every model; with other sizes the trainers would do different work."""
    run = prepare(tmp_path / "race", "zero2", "tiny", 6, nodes=1, ranks_per_node=1)
    zero = run.engine_config["zero_optimization"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"] == "auto"
    library = mock.MagicMock()
    setattr(library, takes, mock.Mock(side_effect=InterruptedError))
    for name in (module, f"{module}.utils"):
        monkeypatch.setitem(sys.modules, name, library)
    race = Race(run, tmp_path / "race", tmp_path / "race/initial.safetensors", tmp_path, lambda: None)
    with pytest.raises(InterruptedError):
        TRAINERS[trainer](race)
    given = getattr(library, takes).call_args.kwargs[key]
    model = llama.Model(**SIZES["tiny"])
    assert given == sized(run.engine_config, sum(value.numel() for value in model.parameters()))
    assert "auto" not in given["zero_optimization"].values()


@pytest.mark.parametrize(
    ("options", "optimizer", "key"),
    [
        ({"find_unused_parameters": True}, {}, "find_unused_parameters is True and False"),
        ({"gradient_as_bucket_view": False}, {}, "gradient_as_bucket_view is False and True"),
        ({}, {"fused": False}, "fused is False and True"),
        ({}, {"weight_decay": 0.1}, "weight_decay is 0.1 and 0.0"),
    ],
)
def test_a_trainer_that_does_other_work_is_named(one_rank, options, optimizer, key):
    def settings(options, optimizer):
        plain = {"gradient_as_bucket_view": True}
        wrapped = DistributedDataParallel(llama.Model(**SIZES["tiny"]), **plain | options)
        chosen = torch.optim.AdamW(wrapped.parameters(), **{"fused": True, "weight_decay": 0.0} | optimizer)
        tokens = torch.zeros(2, 8, dtype=torch.long)
        watch = Watch(wrapped, chosen)
        wrapped(tokens).sum().backward()
        return watch.end()

    first = settings({}, {})
    assert same({"bare": first, "theirs": settings({}, {})}) == first
    with pytest.raises(UserError, match=f"theirs and bare do different work: {key}"):
        same({"bare": first, "theirs": settings(options, optimizer)})


def test_optimizers_and_models_are_found_in_what_wraps_them():
    inner = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    wrapper = type("Wrapper", (), {"optimizer": inner})
    model = nn.Sequential(llama.Model(**SIZES["tiny"]))
    assert Watch(model, type("Outer", (), {"optimizer": wrapper})).end()["optimizer"] == "AdamW"
