"""The race of benchmarks/peers.py, which ends with an error where the losses of its trainers differ."""

import peers
import pytest
import torch.distributed as dist
from trainers.places import prepare


@pytest.fixture
def one_rank(tmp_path):
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_bare_loop_and_ours_train_the_same(one_rank, tmp_path):
    place = tmp_path / "race"
    run = prepare(place, "ddp", "tiny", 6, nodes=1, ranks_per_node=1)
    output = place / "output"
    output.mkdir()
    seconds = peers.race(run, place, output, ["bare", "shardlab"])
    assert {name: len(steps) for name, steps in seconds.items()} == {"bare": 6, "shardlab": 6}
