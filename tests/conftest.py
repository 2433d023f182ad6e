"""Fixtures of all test layers: tiny prepared data sets, a copy of the tree to work in, a full disk."""

import shutil
import subprocess

import pytest

from helpers.common import HARD_NAME, ROOT, Tree, write_tiny_data

pytest_plugins = ["helpers.progress"]


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
