"""Collectives: sent bytes are counted or refused."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers some of the operators
import torch.distributed.tensor._collective_utils
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from shardlab.errors import UserError
from shardlab.measure import traffic
from shardlab.measure.traffic import TimelineRecorder
from shardlab.settings.mesh import ParallelDims

OPS, AUTOGRAD = torch.ops._c10d_functional, torch.ops._c10d_functional_autograd
REFUSED = {"c10d.gather_", "c10d.scatter_", "_c10d_functional.batch_p2p_ops"}
"""Operators that no strategy uses."""


@pytest.fixture
def counted():
    """Function that counts what a call sends, as one of four ranks of a fake group."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)

    def count(call):
        (timeline := TimelineRecorder()).begin()
        world = SimpleNamespace(size=4, mesh=None, dims=ParallelDims({}), grouped=None)
        with traffic.Traffic(world, timeline) as found:
            call()
        return dict(found.bytes)

    yield count
    dist.destroy_process_group()


def test_every_operator_that_communicates_is_counted_silent_or_refused():
    """In this version of PyTorch; add a new one to its table."""
    every = {name.partition(".")[0].replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    counted = {name for name in every if name.partition(".")[0] in traffic.COUNTED}
    assert {name for name in counted if not traffic.collective_of(name)} == traffic.SENDS_NOTHING | REFUSED


def test_what_a_collective_sends(counted):
    def waited(call):
        for made in tree_leaves(call(torch.ones(8), dist.group.WORLD.group_name)):
            if isinstance(made, torch.Tensor):
                OPS.wait_tensor(made)

    for call, sent in (
        (lambda x, group: OPS.all_gather_into_tensor_coalesced([x, x], 4, group), {"all_gather": 6 * 32}),
        (lambda x, group: OPS.all_reduce_coalesced([x, x], "sum", group), {"all_reduce": 2 * 48}),
        (lambda x, group: AUTOGRAD.reduce_scatter_tensor(x, "sum", 4, group), {"reduce_scatter": 24}),
        (lambda x, group: AUTOGRAD.all_to_all_single(x, [2] * 4, [2] * 4, group), {"all_to_all": 24}),
        (lambda x, group: dist.send(x, 1), {"send": 32}),
        (lambda x, group: dist.recv(x, 1), {}),
    ):
        assert counted(partial(waited, call)) == {("world", name): size for name, size in sent.items()}
    parts = [torch.ones(8) for _ in range(4)]
    with pytest.raises(UserError, match=r"the operator c10d\.gather_ communicates, but its number of bytes is unknown"):
        counted(lambda: dist.gather(parts[0], parts))
