"""Options of pytest, and fixtures of all test layers: tiny prepared data sets and a copy of the tree."""

import os
import shutil
import subprocess

import pytest

from helpers.common import HARD_NAME, ROOT, Tree, write_tiny_data

CLUSTER = "tests/cluster"


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_configure():
    # Tensors are small, and several processes share the cores: threads that wait for one another cost most of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class OneCluster(LoadFileScheduling):
        """The tests of a file share a process, and those of the one cluster. (loadgroup needs an older pytest.)"""

        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return CLUSTER if file.startswith(CLUSTER) else file

    return OneCluster(config, log)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="the long form: make test-long"))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """Folder with the tiny prepared data set of every workload, each under the workload's name."""
    folder = tmp_path_factory.mktemp("prepared")
    write_tiny_data(folder)
    return folder


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
    """A copy of the project's files for one test, in a folder of a name that shells take apart."""
    return make_tree(tmp_path / HARD_NAME)
