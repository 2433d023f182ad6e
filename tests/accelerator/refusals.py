"""Code the simulated accelerator refuses, and the correct form of each. Run by test_device.py, where it is loaded."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("sim", 0)


@pytest.fixture
def stream():
    return torch.Stream(DEVICE)


def ones(*size):
    return torch.ones(*size, device=DEVICE)


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(3, device="sim:1")], ids=["cpu", "another"])
def test_tensors_of_two_devices(other):
    with pytest.raises(RuntimeError, match=r"same device|one device"):
        ones(3) + other
    torch.testing.assert_close((ones(3) + other.to(DEVICE)).cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("read", [float, torch.nonzero, torch.Tensor.cpu, torch.Tensor.tolist, lambda x: x[x > 0]])
def test_a_read_by_the_host_where_none_is_allowed(read):
    value = ones(1)
    torch.sim.forbid_host_reads(True)
    try:
        with pytest.raises(RuntimeError, match="the host waits"):
            read(value)
    finally:
        torch.sim.forbid_host_reads(False)
    read(value)


def test_another_stream_s_result_without_waiting(stream):
    with stream:
        made = ones(3) * 2
    with pytest.raises(RuntimeError, match="wait for it first"):
        made + 1
    torch.accelerator.current_stream(DEVICE).wait_stream(stream)
    assert (made + 1).tolist() == [3.0] * 3


def test_writing_what_another_stream_reads(stream):
    value = ones(3)
    stream.wait_stream(torch.accelerator.current_stream(DEVICE))
    with stream:
        value * 2
    with pytest.raises(RuntimeError, match="may still read"):
        value.zero_()
    done = torch.Event(DEVICE)
    done.record(stream)
    torch.accelerator.current_stream(DEVICE).wait_event(done)
    value.zero_()


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_is_freed_while_another_stream_uses_it(stream, recorded):
    value = ones(3)
    stream.wait_stream(torch.accelerator.current_stream(DEVICE))
    with stream:
        value * 2
    if recorded:
        value.record_stream(stream)
    del value
    if recorded:
        ones(3)
    else:
        with pytest.raises(RuntimeError, match="record_stream"):
            ones(3)
        torch.accelerator.synchronize(DEVICE)
        ones(3)


def test_a_copy_to_pinned_memory_is_there_once_it_was_waited_for():
    there, arrived = torch.empty(3, pin_memory=True), torch.Event(DEVICE)
    there.copy_(ones(3), non_blocking=True)
    arrived.record()
    assert there.isnan().all()
    assert not arrived.query()
    arrived.synchronize()
    assert there.tolist() == [1.0] * 3


def test_the_current_device_of_a_thread_that_set_none():
    said = []

    def ask(sets):
        try:
            if sets:
                torch.accelerator.set_device_index(1)
            said.append(torch.empty(1, device="sim").device.index)
        except RuntimeError as error:
            said.append(str(error))

    for sets in (False, True):
        thread = threading.Thread(target=ask, args=[sets])
        thread.start()
        thread.join()
    assert "never set one" in said[0]
    assert said[1] == 1


def test_collectives_wait_for_the_current_stream_and_refuse_the_cpu_s_memory(tmp_path):
    dist.init_process_group("sim", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, device_id=DEVICE)
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(3))
    value = ones(3)
    work = dist.all_reduce(value, async_op=True)
    with pytest.raises(RuntimeError, match="wait for it first"):
        value + 1
    work.wait()
    assert (value + 1).tolist() == [2.0] * 3
    dist.destroy_process_group()


def test_waiting_for_a_copy_does_not_stop_the_other_threads():
    """What a wait runs in Python would run under the devices' lock, which a thread that frees a tensor asks for."""
    stopped = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            thread = threading.Thread(target=ones, args=[3], daemon=True)
            thread.start()
            thread.join(timeout=5)
            stopped.append(thread.is_alive())
            return func(*args, **(kwargs or {}))

    host = torch.empty(3).pin_memory()
    host.copy_(ones(3), non_blocking=True)
    with Mode():
        torch.accelerator.synchronize(DEVICE)
    assert host.tolist() == [1.0] * 3
    assert not any(stopped)


def test_more_memory_than_there_is():
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, dtype=torch.uint8, device=DEVICE)


def test_memory_that_was_never_written_is_no_number():
    assert torch.empty(3, device=DEVICE).cpu().isnan().all()


def test_the_peak_counts_each_device_from_where_it_is_told_to():
    torch.accelerator.reset_peak_memory_stats(1)
    before = torch.accelerator.max_memory_allocated(1)
    value = torch.ones(1024, device="sim:1")
    assert torch.accelerator.max_memory_allocated(1) == before + value.nbytes
    del value
    torch.accelerator.reset_peak_memory_stats(1)
    assert torch.accelerator.max_memory_allocated(1) == before
