"""What the test layers share: tiny prepared data sets, runs over them, and a copy of the tree to work in."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardlab import configs, runs
from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encode import encode

ROOT = Path(__file__).resolve().parents[1]

TINY = {
    "mlp": {"rows": 40},
    "mnist": {"rows": 40},
    "xsum": {"rows": 40},
    "vit": {"rows": 40},
    "llama2": {"characters": 4_600, "sequence_length": 32},
}
"""Data options that leave 32 training samples or a little more, so that small cases take milliseconds."""


def tiny_run(workload, strategy="single", **recipe):
    """A run over the tiny data set of a workload; 5 samples a step, which no number of ranks divides."""
    config = configs.load_config({"recipe": {"global_batch": 5, "epochs": 3, "max_steps": 8} | recipe})
    run = runs.resolve(config, strategy, workload)
    options = run.data.options | TINY[workload]
    return run.model_copy(update={"data": run.data.model_copy(update={"options": options})})


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """Folder with the tiny prepared data set of every workload, each under the workload's name."""
    folder = tmp_path_factory.mktemp("prepared")
    for workload in TINY:
        data = tiny_run(workload).data
        store.write(folder / workload, data, *encode(data, data_sets.read(data, folder)))
    return folder


@dataclass(frozen=True)
class Tree:
    """A copy of the project's files, in which nothing has been made yet."""

    path: Path

    def run(self, *command, check=True, timeout=600, **environment):
        """Run a command there with the tests' Python first on the PATH; returns it with its output."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.path,
            env=os.environ | {"PATH": path} | environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
        assert not check or done.returncode == 0, done.stdout
        return done

    def snakemake(self, *arguments, profile="workflow/profiles/local", **options):
        """Run snakemake there."""
        return self.run("snakemake", "--profile", profile, *arguments, **options)

    def json(self, path):
        """Content of a JSON file there."""
        return json.loads((self.path / path).read_text())


@pytest.fixture(scope="session")
def make_tree():
    """Function that copies the project's files (those git tracks or would) into a folder."""

    def make(folder):
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=True,
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        return Tree(folder)

    return make


@pytest.fixture
def tree(make_tree, tmp_path):
    """A copy of the project's files for one test."""
    return make_tree(tmp_path / "tree")


@pytest.fixture
def full_disk(tmp_path):
    """A file system with 64 KiB."""
    folder = tmp_path / "full"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system needs the right to mount one: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
