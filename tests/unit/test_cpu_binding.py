"""Binding of ranks to cores."""

import os
import subprocess
import sys

import pytest

from helpers.common import ROOT
from shardlab.errors import UserError
from shardlab.runs import commands, cpu_binding
from shardlab.runs.stages import Scope
from shardlab.settings import load, resolve

PROGRAM = "from shardlab.runs import cpu_binding; cpu_binding.bind({lists}); print(cpu_binding.own())"


def bound(lists, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(lists=lists)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")} | environment,
        text=True,
        capture_output=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_lists_of_cores_are_read_and_written():
    assert cpu_binding.parse("0-3,8") == {0, 1, 2, 3, 8}
    assert cpu_binding.text({8, 0, 1, 2, 3, 10, 11}) == "0-3,8,10-11"


def test_a_rank_runs_on_the_cores_of_its_gpu_only():
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    lists = [str(first), str(last)]
    assert bound(lists, LOCAL_RANK="1") == (lists[1], "")
    # Of a node's GPUs Slurm gave this step the second: local rank 0 is not on GPU 0.
    assert bound(lists, LOCAL_RANK="0", SLURM_STEP_GPUS="1") == (lists[1], "")


def test_a_job_with_other_cores_is_not_bound_and_says_so():
    cores, said = bound(["900-903"])
    assert cores == cpu_binding.own()
    assert "cpu_binding of GPU 0 is 900-903" in said


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cpu_binding": "node"}, "device is cpu; give a list of cores for each rank"),
        ({"cpu_binding": []}, "cpu_binding is empty"),
    ],
)
def test_a_binding_that_cannot_be_is_one_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        load.site(load.config({"site": "test", "site_settings": settings}))


def test_torchrun_binds_next_to_gpus():
    config = load.config({"site": "engaging", "site_settings": {"cpu_binding": "exclusive"}})
    lines = commands.lines(resolve.run(config, "ddp", "mlp"), ["x.py"], None, Scope.RANKS)
    assert "--numa-binding=exclusive" in lines
