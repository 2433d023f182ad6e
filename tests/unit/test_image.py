"""Image and wheelhouse: an error is one sentence and leaves nothing half-built."""

import os
import sys

import pytest

from helpers.common import program
from shardlab.cli import image
from shardlab.errors import UserError
from shardlab.files import sha256, write_json
from shardlab.runs.images import ImageReport, read_image
from shardlab.settings.sites import Container


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Function that makes an image with these settings; returns its report, which is in the test's folder."""

    def make(**container):
        words = {"container": Container(**container).model_dump_json(), "wheels": tmp_path / "wheels"}
        words["output"] = tmp_path / "train.json"
        monkeypatch.setattr(sys, "argv", ["shardlab image", *(f"--{key}={value}" for key, value in words.items())])
        image.main()
        return read_image(tmp_path / "train.json")

    return make


def test_a_failed_build_leaves_the_old_image(made, tmp_path):
    """With the site's flags: it may forbid --fakeroot."""
    text = f'echo "$@" > {tmp_path}/words\nfor word; do case "$word" in *.tmp) touch "$word";; esac; done\nexit 1'
    failing = str(program(tmp_path / "apptainer", text))
    (tmp_path / "train.sif").write_text("old")
    with pytest.raises(UserError, match="could not build"):
        made(command=failing, mirror="http://127.0.0.1:9", build_flags=["--userns"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apptainer", "train.sif", "words"]
    assert (tmp_path / "train.sif").read_text() == "old"
    assert (tmp_path / "words").read_text().startswith("build --force --userns --mksquashfs-args ")


def test_an_image_that_was_changed_after_its_report(tmp_path):
    (tmp_path / "train.sif").write_text("image")
    digest = sha256(tmp_path / "train.sif")
    report = ImageReport(path=str(tmp_path / "train.sif"), sha256=digest, bytes=5, labels={})
    write_json(tmp_path / "train.image.json", report.model_dump(mode="json"))
    os.utime(tmp_path / "train.sif", (2e9, 2e9))
    assert read_image(tmp_path / "train.image.json").sha256 == digest, "only its time has changed"
    (tmp_path / "train.sif").write_text("imagE")
    os.utime(tmp_path / "train.sif", (2e9, 2e9))
    with pytest.raises(UserError, match=r"is not the one in .*train.image.json \(its SHA-256 differs\)"):
        read_image(tmp_path / "train.image.json")
