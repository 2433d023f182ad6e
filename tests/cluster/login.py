"""The ordinary user of the cluster in a box, and what a person at its login node can see."""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cluster
from shardlab.records.metrics import read

RECIPE = "recipe={max_steps: 8}"
"""Few steps: starting a job takes longer, and rounding has not grown yet."""
STARTED = []
"""Processes of the user, each the first of its group."""


@dataclass(frozen=True)
class Learner:
    """The ordinary user, logged in, in a copy of the project."""

    path: Path

    def start(self, *command, **environment):
        """Start a command as that user; returns the process with its output in a pipe."""
        process = subprocess.Popen(
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
            start_new_session=True,
        )
        STARTED.append(process)
        return process

    def finish(self, process, *, check=True, timeout=600):
        """Wait for a started command; returns its status and output."""
        output, _ = process.communicate(timeout=timeout)
        assert not check or process.returncode == 0, output[-6000:]
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def run(self, *command, check=True, timeout=600, **environment):
        """Run a command as that user."""
        return self.finish(self.start(*command, **environment), check=check, timeout=timeout)

    def snakemake(self, *targets, config=(), flags=(), profile="slurm", **options):
        """Run snakemake for targets; ``config``: words after ``--config``."""
        return self.run(*snakemake(*targets, config=config, flags=flags, profile=profile), **options)

    def json(self, path):
        """Content of a JSON file there."""
        return json.loads((self.path / path).read_text())


def snakemake(*targets, config=(), flags=(), profile="slurm"):
    """The words of a snakemake call on the test site; a key that comes again in ``config`` wins.

    Trainings are short, unless ``config`` has a recipe.
    """
    soon = ["--slurm-init-seconds-before-status-checks=4"] if profile == "slurm" else []
    short = [] if any(word.startswith("recipe=") for word in config) else [RECIPE]
    return ["snakemake", "--profile", profile, *soon, *flags, "--config", "site=test", *short, *config, "--", *targets]


def end_all():
    """Kill processes that a failed or interrupted test left running."""
    for process in STARTED:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def home():
    """Folder in the user's home that the tests work in."""
    return Path(pwd.getpwnam(cluster.USER).pw_dir) / "shardlab-tests"


def clone():
    """The user's clone there."""
    return home() / "shardlab"


def here(call):
    """A call of the README on this cluster, with the first status check sooner."""
    soon = "--profile slurm --slurm-init-seconds-before-status-checks=4"
    return call.replace("--profile slurm", soon).replace("site=engaging", "site=test")


def login_environment():
    """What the user's shell has: the project's Python on the PATH, and this machine's pip settings."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True, check=True)
    settings = re.findall(r"^(?:global|install|wheel|:env:)\.([\w-]+)='(.*)'$", listed.stdout, flags=re.MULTILINE)
    pip = {f"PIP_{key.replace('-', '_').upper()}": value for key, value in settings}
    path = f"{clone()}/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    return pip | {"HOME": str(home()), "USER": cluster.USER, "LOGNAME": cluster.USER, "PATH": path, "LANG": "C.UTF-8"}


def own(folder):
    """Give a folder to the user."""
    subprocess.run(["chown", "-R", "--no-dereference", f"{cluster.USER}:", folder], check=True)


def sacct(*fields, since):
    """Rows of the finished and running jobs (not their steps) that started since then, as dictionaries."""
    words = ["sacct", "--allusers", "-X", "-P", "-n", f"--starttime={since}", f"--format={','.join(fields)}"]
    lines = subprocess.run(words, text=True, capture_output=True, check=True).stdout.splitlines()
    return [dict(zip(fields, line.split("|"), strict=True)) for line in lines]


def gpus(since):
    """Number of GPUs requested by each job, by its id."""
    rows = sacct("JobID", "AllocTRES", since=since)
    found = {row["JobID"]: re.search(r"gres/gpu=(\d+)", row["AllocTRES"]) for row in rows}
    return {job: int(number[1]) if number else 0 for job, number in found.items()}


def queue(job):
    """State of a job that has not ended, or nothing."""
    words = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    return subprocess.run(words, text=True, capture_output=True).stdout.strip()


def now():
    """The current second, in the format of sacct's --starttime."""
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

    until(f"a job that trains {run}", locked, seconds=300)
    return lock.read_text().removeprefix("Slurm job ")


def steps(learner, run):
    """Number of training steps that a run has completed."""
    records = read(learner.path / "results" / run / "metrics.jsonl")
    return max((record["step"] + 1 for record in records if record["kind"] == "train"), default=0)
