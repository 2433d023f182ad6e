"""The race of benchmarks/peers.py: all trainers do the same work, and one that does not is named."""

import peers
import pytest
import torch.distributed as dist
from trainers.places import SIZES, prepare

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
