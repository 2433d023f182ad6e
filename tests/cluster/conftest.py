"""The cluster in a box, and the ordinary user who works on it: what the cluster tests share."""

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import cluster

PYTHON = "/usr/bin/python3"
"""Debian's own: the one that the ordinary user and both nodes can reach."""


@dataclass(frozen=True)
class Learner:
    """The ordinary user, logged in, in a copy of the project."""

    path: Path

    def start(self, *command, **environment):
        """Start a command as that user; returns the process with its output in a pipe."""
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=login_environment() | environment,
            user=cluster.USER,
            group=cluster.USER,
            extra_groups=[],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def finish(self, process, *, check=True, timeout=600):
        """Wait for a started command; returns its status and output."""
        output, _ = process.communicate(timeout=timeout)
        assert not check or process.returncode == 0, output[-6000:]
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def run(self, *command, check=True, timeout=600, **environment):
        """Run a command as that user."""
        return self.finish(self.start(*command, **environment), check=check, timeout=timeout)

    def snakemake(self, target, *arguments, config=(), profile="slurm", **options):
        """Run snakemake for a target, as a user types it; ``config``: words after ``--config``."""
        return self.run(*snakemake(target, *arguments, config=config, profile=profile), **options)

    def json(self, path):
        """Content of a JSON file there."""
        return json.loads((self.path / path).read_text())


def snakemake(target, *arguments, config=(), profile="slurm"):
    """The words of a snakemake call on the test site; later keys in ``config`` win."""
    return ["snakemake", "--profile", profile, *arguments, "--config", "site=test", *config, "--", target]


def login_environment():
    """What the user's shell has: the project's Python on the PATH, and this machine's pip settings."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True, check=True)
    settings = re.findall(r"^(?:global|install|wheel|:env:)\.([\w-]+)='(.*)'$", listed.stdout, flags=re.MULTILINE)
    pip = {f"PIP_{key.replace('-', '_').upper()}": value for key, value in settings}
    home = pwd.getpwnam(cluster.USER).pw_dir
    path = f"{home}/shardlab/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    return pip | {"HOME": home, "USER": cluster.USER, "LOGNAME": cluster.USER, "PATH": path, "LANG": "C.UTF-8"}


@pytest.fixture(scope="session")
def box():
    """The cluster, up for as long as the tests of this folder run."""
    if reason := cluster.obstacle():
        pytest.skip(f"no cluster here: {reason}")
    cluster.up(nodes=2, gpus=4, cpus=8)
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def base(box, make_tree):
    """The project in the user's home, set up as the README says, with the image that the workflow built."""
    folder = Path(pwd.getpwnam(cluster.USER).pw_dir) / "shardlab"
    shutil.rmtree(folder, ignore_errors=True)
    make_tree(folder)
    own(folder)
    learner = Learner(folder)
    learner.run("make", ".venv/login", f"PYTHON={PYTHON}")
    learner.snakemake("containers/train.json", timeout=1200)
    return learner


@pytest.fixture
def learner(base, tmp_path):
    """A second copy of the project beside the first, with its image, in which nothing has run; gone after the test."""
    folder = base.path.with_name(tmp_path.name)
    shutil.rmtree(folder, ignore_errors=True)
    skipped = shutil.ignore_patterns(".venv", ".snakemake", "data", "results")
    shutil.copytree(base.path, folder, symlinks=True, ignore=skipped, copy_function=os.link)
    (folder / ".venv").symlink_to(base.path / ".venv")
    own(folder)
    yield Learner(folder)
    shutil.rmtree(folder)


def own(folder):
    """Give a folder to the user."""
    subprocess.run(["chown", "-R", "--no-dereference", f"{cluster.USER}:", folder], check=True)


def sacct(*fields, since):
    """Rows of the finished and running jobs (not their steps) that started since then, as dictionaries."""
    words = ["sacct", "--allusers", "-X", "-P", "-n", f"--starttime={since}", f"--format={','.join(fields)}"]
    lines = subprocess.run(words, text=True, capture_output=True, check=True).stdout.splitlines()
    return [dict(zip(fields, line.split("|"), strict=True)) for line in lines]


def now():
    """This second, as sacct's --starttime wants it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S")


def until(what, ready, seconds=120):
    """Wait for something; fails after that many seconds."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"{what} did not happen within {seconds} s"
        time.sleep(0.5)


def training_job(learner, run, driver):
    """Wait until a run is being trained by a job of that snakemake call; returns the job's id."""
    lock = learner.path / "results" / run / ".lock"

    def locked():
        assert driver.poll() is None, learner.finish(driver).stdout
        return lock.exists() and lock.read_text()

    until(f"a job that trains {run}", locked)
    return lock.read_text().removeprefix("Slurm job ")
