"""Image and wheelhouse: what goes wrong is one sentence, and nothing half-built is left."""

import argparse
import os
import subprocess
import sys
from types import SimpleNamespace

import image
import pytest

from helpers.common import ROOT
from shardlab.errors import UserError
from shardlab.files import lock, sha256, write_json
from shardlab.launch.images import ImageReport, read_image
from shardlab.settings.sites import Container


def build(tmp_path, **container):
    """Run image.py with these settings, for a report in the test's folder."""
    settings = Container(**container).model_dump_json()
    if not (tmp_path / "wheels/wheels.json").exists():
        write_json(tmp_path / "wheels/wheels.json", {})
    words = ["--container", settings, "--output", tmp_path / "train.json", "--wheelhouse", tmp_path / "wheels"]
    command = [sys.executable, ROOT / "scripts/image.py", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_no_apptainer(tmp_path):
    seen = build(tmp_path, command="apptainer-9")
    assert "error: there is no apptainer-9 on " in seen
    assert "set config key container to off" in seen


def test_a_failed_build_leaves_the_old_image(tmp_path):
    program = tmp_path / "failing"
    program.write_text('#!/bin/sh\nfor word; do case "$word" in *.tmp) touch "$word";; esac; done\nexit 1\n')
    program.chmod(0o755)
    (tmp_path / "train.sif").write_text("old")
    assert "could not build" in build(tmp_path, command=str(program), mirror="http://127.0.0.1:9")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failing", "train.sif", "wheels"]
    assert (tmp_path / "train.sif").read_text() == "old"


def test_root_needs_no_fakeroot(tmp_path):
    """Which wants an entry for it in /etc/subuid; others need it."""
    program = tmp_path / "failing"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nexit 1\n')
    program.chmod(0o755)
    build(tmp_path, command=str(program), mirror="http://127.0.0.1:9")
    words = (tmp_path / "words").read_text().split()
    assert words[0] == "build"
    assert ("--fakeroot" in words) == (os.geteuid() != 0)


def test_an_image_by_its_name(tmp_path):
    settings = Container(command="true", image="nersc/pytorch:25.02.01", image_is="name").model_dump_json()
    words = ["--container", settings, "--output", tmp_path / "named.json"]
    subprocess.run([sys.executable, ROOT / "scripts/image.py", *words], check=True)
    report = read_image(tmp_path / "named.json")
    assert (str(report.path), report.sha256) == ("nersc/pytorch:25.02.01", None)


def test_a_named_image_that_is_not_there(tmp_path):
    seen = build(tmp_path, command="true", image=str(tmp_path / "none.sif"))
    assert "none.sif; set container.image in the site's file to an existing one" in seen


def test_wheels_of_another_python_than_debian_has(monkeypatch, tmp_path):
    monkeypatch.setattr(image, "sys", SimpleNamespace(version_info=SimpleNamespace(major=3, minor=13)))
    args = argparse.Namespace(container=Container(base="debootstrap"))
    with pytest.raises(UserError, match=r"Debian 12 with Python 3.11.*Python 3.13.*container.base to docker"):
        image.build_arguments(args)


def test_an_image_that_has_gone_after_its_report(tmp_path):
    report = ImageReport(path=tmp_path / "gone.sif", sha256="0", bytes=1, labels={})
    write_json(tmp_path / "train.json", report.model_dump(mode="json"))
    with pytest.raises(UserError, match=r"gone.sif is missing; build it again with: snakemake"):
        read_image(tmp_path / "train.json")


def test_a_package_that_does_not_exist_leaves_the_old_wheels(tmp_path):
    (tmp_path / "lock.txt").write_text("shardlab-no-such-package==1\n")
    house = tmp_path / "wheelhouse"
    write_json(house / "wheels.json", {"old.whl": "0"})
    words = ["--lock", tmp_path / "lock.txt", "--output", house / "wheels.json"]
    command = [sys.executable, ROOT / "scripts/wheelhouse.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={"PIP_NO_INDEX": "1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 1
    assert "pip could not collect the packages of" in done.stderr
    assert [path.name for path in tmp_path.glob("*wheelhouse*")] == ["wheelhouse"]
    assert "old.whl" in (house / "wheels.json").read_text()


def test_a_lock_whose_holder_is_at_work_elsewhere_is_kept(tmp_path):
    path = tmp_path / ".lock"
    path.write_text("Slurm job 7")
    with pytest.raises(UserError, match="is being trained by Slurm job 7"), lock(path, "trained", still=lambda _: True):
        pass
    with lock(path, "trained", still=lambda holder: holder != "Slurm job 7"):
        assert path.read_text() != "Slurm job 7"
    assert path.read_text() == "", "a lock that was given back names nobody"


def test_a_wheel_that_was_changed_is_not_installed(tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/a.whl").write_text("changed")
    write_json(tmp_path / "wheels/wheels.json", {"a.whl": "0"})
    assert "a.whl is not the wheel that was collected" in build(tmp_path, command="true", mirror="http://127.0.0.1:9")


def test_an_image_that_was_changed_after_its_report(tmp_path):
    (tmp_path / "train.sif").write_text("image")
    digest = sha256(tmp_path / "train.sif")
    report = ImageReport(path=tmp_path / "train.sif", sha256=digest, bytes=5, labels={})
    write_json(tmp_path / "train.image.json", report.model_dump(mode="json"))
    os.utime(tmp_path / "train.sif", (2e9, 2e9))
    assert read_image(tmp_path / "train.image.json").sha256 == digest, "only its time has changed"
    (tmp_path / "train.sif").write_text("imagE")
    os.utime(tmp_path / "train.sif", (2e9, 2e9))
    with pytest.raises(UserError, match=r"is not the one that .*train.image.json is about \(its SHA-256 differs\)"):
        read_image(tmp_path / "train.image.json")
