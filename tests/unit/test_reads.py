"""Reads by the host, which on a GPU would wait for the device, as the parity suite counts them."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore
from worker import counted

from shardlab.parallel import tensor


def reads(work):
    found = Counter()
    with counted(found):
        work()
    return found


@pytest.mark.parametrize("read", [Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.item, torch.nonzero])
def test_a_read_is_counted_on_a_cpu_too(read):
    value = torch.ones(1)
    assert reads(lambda: read(value))
    assert not reads(lambda: value * 2 + value.sum())


def test_a_number_of_the_host_s_own_generator_is_no_read():
    assert not reads(lambda: tensor.drawn())


def test_a_read_inside_a_dtensor_is_counted():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        value = DTensor.from_local(torch.ones(1), init_device_mesh("cpu", (2,)), [Replicate()])
        assert reads(lambda: torch.equal(value, value))
        assert not reads(lambda: value * 2)
    finally:
        dist.destroy_process_group()
