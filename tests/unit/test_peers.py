"""The race of benchmarks/peers.py: all trainers do the same work, and one that does not is named."""

import peers
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from trainers.places import SIZES, prepare
from trainers.settings import Watch, same

from shardlab.errors import UserError
from shardlab.models import llama


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
    ("options", "optimizer", "key"),
    [
        ({"find_unused_parameters": True}, {}, "find_unused_parameters is True and False"),
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
