"""The project's own functions of a device, on the simulated accelerator. Run where it is loaded: see test_device.py."""

import threading

import pytest
import torch

from shardlab.errors import UserError
from shardlab.runs import gpus
from shardlab.runtime import device
from shardlab.runtime.device import Arriving, Prefetch

FIRST, SECOND = torch.device("sim", 0), torch.device("sim", 1)


def of_new_thread(work):
    """What a function returns in a thread that has set no device; its error is raised here."""
    made = []

    def run():
        try:
            made.append(work())
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def test_a_rank_has_the_device_of_its_number_and_too_few_are_one_sentence(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.device_for_rank("cuda") == SECOND
    assert device.device_for_rank("cpu") == torch.device("cpu")
    assert device.devices_for_process("cuda", 2) == [FIRST, SECOND]
    monkeypatch.setattr(gpus, "listed", lambda: [])
    monkeypatch.setenv("LOCAL_RANK", "9")
    with pytest.raises(UserError, match=r"rank 9 of this node needs its own GPU, but PyTorch sees \d: "):
        device.device_for_rank("cuda")
    with pytest.raises(UserError, match="drives 99 GPUs from one process, but PyTorch sees"):
        device.devices_for_process("cuda", 99)


def test_every_device_of_a_process_is_seeded():
    drawn = []
    for _ in range(2):
        device.seed(FIRST, 7)
        drawn.append([torch.rand(3, device=each).tolist() for each in (FIRST, SECOND)])
    assert drawn[0] == drawn[1]
    device.seed(FIRST, 8)
    assert torch.rand(3, device=SECOND).tolist() != drawn[0][1]


def test_another_thread_asks_for_the_device_of_its_rank():
    device.forget_peak([FIRST, SECOND])
    held = torch.ones(1024, device=SECOND)
    first, second = of_new_thread(lambda: [device.peak_memory([each]) for each in (FIRST, SECOND)])
    assert second >= held.nbytes > first
    assert device.name(SECOND) == "simulated accelerator 1"


def test_a_batch_made_ahead_by_another_thread_is_waited_for():
    ahead = Prefetch(FIRST)
    batch, done = of_new_thread(lambda: ahead.made(lambda: torch.ones(3, device=FIRST) * 2))
    with pytest.raises(RuntimeError, match="wait for it first"):
        batch + 1
    ahead.ready([batch], done)
    used = batch + 1
    del batch
    of_new_thread(lambda: ahead.made(lambda: torch.ones(3, device=FIRST)))  # may have its memory: that was recorded
    assert used.tolist() == [3.0] * 3


def test_figures_arrive_once_they_are_waited_for():
    arriving = Arriving(torch.tensor([1.0, 2.0], device=FIRST))
    assert arriving.tolist() == [1.0, 2.0]


def test_the_peak_is_of_the_rank_s_devices_since_it_was_forgotten():
    held = torch.ones(4096, device=SECOND)
    device.forget_peak([FIRST, SECOND])
    assert device.peak_memory([FIRST, SECOND]) >= held.nbytes
    assert device.peak_memory([FIRST]) < held.nbytes


def test_a_device_that_others_use_is_named(capfd):
    device.warn_if_shared(SECOND)
    assert capfd.readouterr().err == ""
    held = torch.empty(gpus.BUSY_MIB * 2**20 + 1, dtype=torch.uint8, device=SECOND)
    device.warn_if_shared(SECOND)
    assert "sim:1 on " in capfd.readouterr().err
    del held
