"""Fixtures of the cluster tests: the cluster in a box, and the ordinary user's copies of the project on it."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

import cluster
from helpers.common import ROOT
from helpers.documents import commit, readme
from login import Learner, clone, end_all, here, home, now, own

INIT = ("mlp", "llama2")
"""Workloads whose initial weights are drawn once for all tests."""
TRAINED = "results/single/mlp.done"
"""A run that is done before the tests of failures begin."""


@pytest.fixture(scope="session")
def started():
    """A time before the first job."""
    return now()


@pytest.fixture(scope="session")
def box(started):
    """The cluster, up for as long as the tests of this folder run."""
    if reason := cluster.incompatibility():
        pytest.skip(f"no cluster here: {reason}")
    cluster.up(nodes=2, gpus=4, cpus=4)
    yield cluster
    end_all()
    cluster.down()


@pytest.fixture(scope="session")
def base(box, make_tree):
    """The project in the user's home by the README's own lines: clone, setup, preflight, which builds the image."""
    shutil.rmtree(home(), ignore_errors=True)
    origin = commit(make_tree(home() / "origin"))
    own(home())
    first, setup, preflight, _ = readme(ROOT, "On your cluster")
    first = first.replace("URL-OF-THIS-REPOSITORY", str(origin))
    Learner(home()).run("bash", "-c", f"{first} && {setup} && {here(preflight)}", timeout=1200)
    learner = Learner(clone())
    learner.snakemake(
        "containers/train.image.json", *(f"results/init/{name}.safetensors" for name in INIT), TRAINED, timeout=1200
    )
    yield learner
    shutil.rmtree(home(), ignore_errors=True)


@pytest.fixture(scope="session")
def make_copy(base, make_tree):
    """Function that makes a further copy of the project, with the first one's image and initial weights."""

    @contextmanager
    def make(name):
        folder = base.path.with_name(name)
        shutil.rmtree(folder, ignore_errors=True)
        make_tree(folder)
        (folder / ".venv").symlink_to(base.path / ".venv")
        images = [f"containers/{file}" for file in ("train.sif", "train.image.json", "wheelhouse/wheels.json")]
        weights = [f"results/init/{name}{file}" for name in INIT for file in (".safetensors", ".json", "/run.json")]
        data = [str(path.relative_to(base.path)) for path in base.path.glob("data/prepared/*/*")]
        share(base.path, folder, images + weights + data)
        yield Learner(folder)
        shutil.rmtree(folder)

    return make


@pytest.fixture
def learner(make_copy, tmp_path):
    """The ordinary user in a copy of the project in which no run is done."""
    with make_copy(tmp_path.name) as learner:
        yield learner


@pytest.fixture
def trained(base, learner):
    """The second copy with one run done; afterwards that still is, whatever the test did."""
    run = Path(TRAINED).with_suffix("")
    share(base.path, learner.path, [TRAINED, *(str(run / name) for name in ("model.safetensors", "train.json"))])
    weights = (learner.path / run / "model.safetensors").read_bytes()
    yield learner
    assert (learner.path / TRAINED).exists()
    assert (learner.path / run / "model.safetensors").read_bytes() == weights


def share(source, target, names):
    """Link files of one copy of the project into another, with their times, and give that to the user."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(source / name, target / name)
    own(target)
