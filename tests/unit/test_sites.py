"""Sites: sbatch and srun lines, compared with an approved text; queues, images, what is said before a job."""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

from shardlab.cli import preflight
from shardlab.errors import UserError
from shardlab.runs import commands, slurm, slurm_request
from shardlab.settings import load, resolve

APPROVED = Path(__file__).with_name("sbatch_and_srun.txt")
"""Lines of the cluster in a box: Slurm and Apptainer. Queues, podman and an image by srun have tests of their own."""


def loaded(**values):
    config = load.config(values)
    return config, load.site(config)


def lines():
    """What the jobs of each stage request and start, on one GPU, and on two nodes; names instead of paths."""
    project = mock.patch.multiple(commands, ROOT=Path("PROJECT"), PROJECT=Path("PROJECT"))
    of_lines = mock.patch.object(slurm_request, "COMMAND", Path("PROJECT/scripts/shardlab"))
    command = mock.patch.object(commands, "COMMAND", Path("PROJECT/scripts/shardlab"))
    with project, command, of_lines, mock.patch.object(sys, "executable", "python"):
        sizes = ({"nodes": 1, "ranks_per_node": 1}, {"nodes": 2, "ranks_per_node": 4})
        return "\n\n".join(slurm_request.lines(*loaded(site="test", **size)) for size in sizes) + "\n"


def test_sbatch_and_srun_lines_are_the_approved_ones():
    """After an intended change: APPROVE=1 .venv/bin/python -m pytest tests/unit/test_sites.py, and read the diff."""
    if "APPROVE" in os.environ:
        APPROVED.write_text(lines())
    assert lines() == APPROVED.read_text()


def test_settings_of_the_configuration_go_over_the_file_key_by_key():
    config, site = loaded(site="test", container=False, site_settings={"slurm": {"account": "mine", "gpus": "null"}})
    assert (site.slurm.account, site.slurm.partition, site.slurm.gpus) == ("mine", "batch", None)
    assert site.container is not None
    assert resolve.run(config, "ddp", "mlp").site.container is None


QUEUES = {
    "small": {"partition": "small", "nodes_max": 1, "gpus_per_node_max": 2},
    "whole": {"partition": "whole", "flags": ["--exclusive"], "gpus_max": 8},
    "debug": {"partition": "debug", "qos": "debug", "runtime_max": 30, "nodes_max": 1},
}


def with_queues(**slurm):
    settings = {"slurm": {"queues": QUEUES, "queue": ["small", "whole"], **slurm}}
    return loaded(site="test", site_settings=settings)[1]


def test_a_job_goes_to_the_first_queue_that_takes_its_size():
    site = with_queues(qos="normal", flags=["--x"], stages={"preflight": {"queue": ["debug"]}, "init": {"runtime": 7}})
    jobs = (("train", 1, 2), ("train", 2, 4), ("init", 1, 1), ("preflight", 1, 4, 60))
    small, nodes, init, preflight = (slurm.resources(site, *job) for job in jobs)
    assert (small["slurm_partition"], small["qos"], small["slurm_extra"].split()[0]) == ("small", "normal", "--x")
    assert (nodes["slurm_partition"], nodes["slurm_extra"].split()[:2]) == ("whole", ["--x", "--exclusive"])
    assert (init["slurm_partition"], init["runtime"]) == ("small", 7)
    assert (preflight["slurm_partition"], preflight["qos"], preflight["runtime"]) == ("debug", "debug", 30)
    most = "small: nodes_max 1, gpus_per_node_max 2; whole: gpus_max 8"
    with pytest.raises(UserError, match=rf"train requests 3 x 4 GPUs.*\({most}\); set nodes"):
        slurm.resources(site, "train", 3, 4)


def test_every_site_s_lines_can_be_printed(capsys, monkeypatch):
    """As a support engineer does: shardlab preflight -n."""
    for name in load.names("sites"):
        monkeypatch.setattr(sys, "argv", ["preflight", "-n", "--config", f"site={name}"])
        assert preflight.main() == 0
        assert "# preflight (ranks), train (ranks)\n" in capsys.readouterr().out


def test_podman_mounts_the_folder_of_a_workflow_and_hands_the_environment_on(monkeypatch):
    """And the project itself; nothing of the environment gets into its containers otherwise."""
    monkeypatch.setattr(commands, "PROJECT", Path("/mine"))
    monkeypatch.setattr(commands, "ROOT", Path("/project"))
    _, site = loaded(site="perlmutter", site_settings={"container": {"binds": ["/data", "/a:/b:ro"]}})
    words, _ = commands.image_words(site.container, "IMAGE")
    volumes = [word.removeprefix("--volume=") for word in words if word.startswith("--volume=")]
    assert volumes == ["/mine:/mine", "/project:/project", "/data:/data", "/a:/b:ro"]
    assert "--env-host" in words[: words.index("IMAGE")]


def test_srun_gets_the_image_and_a_node_s_lines_run_inside_it():
    """There in the project's folder, with the site's variables, not the image's; sbatch does not know the option."""
    text = slurm_request.lines(*loaded(site="alps", nodes=2, ranks_per_node=4))
    option = " --environment=/PATH/shardlab.toml bash -c "
    assert all((option in line) == line.startswith("exec srun ") for line in text.splitlines() if "/PATH/" in line)
    inside = text.partition(f"{option}'")[2]
    assert inside.startswith(f"cd {commands.PROJECT}\n")
    assert inside.partition("\nexec ")[0].endswith("\nexport GLOO_SOCKET_IFNAME=hsn0")


def test_a_path_that_slurm_jobs_cannot_start_with_is_said():
    assert slurm.path_obstacle("/home/me/shardlab/.venv/bin/python") is None
    assert "a folder without spaces, quotes and $" in slurm.path_obstacle("/home/me/my project/.venv/bin/python")
