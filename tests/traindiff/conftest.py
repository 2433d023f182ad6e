"""Fixtures of the tests of traindiff, which need nothing of Shardlab."""

import pytest
from tiny_dumps import dump

from traindiff import command_line


@pytest.fixture
def compare(tmp_path, capsys):
    """Function that compares the files of two dumps with these options; returns the status and what is printed."""

    def run(other, reference, *options):
        folders = [dump(tmp_path / name, files) for name, files in (("other", other), ("reference", reference))]
        status = command_line.main([*map(str, (*folders, *options))])
        printed = capsys.readouterr()
        assert bool(printed.err) == (status == 2)
        return status, printed.out or printed.err.replace(f"{tmp_path}/", "")

    return run
