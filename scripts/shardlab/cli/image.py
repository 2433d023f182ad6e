"""Build the image for training, or inspect the one that the site names; write its
report.

Ordinary users build with --fakeroot, unless container.build_flags says
otherwise. APPTAINER_TMPDIR and APPTAINER_CACHEDIR set its working folders.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import ROOT, sha256, write_json
from shardlab.runs import commands, debian
from shardlab.runs.images import ImageReport
from shardlab.settings import torch_releases
from shardlab.settings.sites import Container

ELSEWHERE = 'docs/cluster.md, "Where to build the image"'
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of architectures in an image's label, and those that Linux uses."""
COMPRESSION = "-comp zstd -Xcompression-level 3"
"""Of the image's file system."""
NOT_FOR_ROCM = re.compile(r"(?:torch|triton)==|nvidia-|cuda-", re.IGNORECASE)
"""Pins of what an image with PyTorch for ROCm provides itself, and of what only NVIDIA GPUs use."""


@program
def main(
    output: Path,
    container: Container,
    definition: Path = ROOT / "containers/train.def",
    lock: Path = ROOT / "envs/train.txt",
    wheels: Path = ROOT / "containers/wheelhouse",
    clear: Sequence[str] = (),
) -> None:
    """Build or inspect the image, then write the report."""
    if reason := commands.missing(container):
        raise UserError(f"{reason}.")
    for name in clear:
        os.environ.pop(name, None)
    if container.image and container.image_is == "name":
        named = ImageReport(path=container.image, sha256=None, bytes=None, labels={})
        write_json(output, named.model_dump(mode="json"))
        return
    facts: dict[str, str | float] = {}
    # Absolute, as srun's plugins take a file without a folder for the name of an image in a registry.
    named_file = Path(container.image).absolute() if container.image else None
    image = named_file or output.with_name(output.name.split(".")[0] + ".sif")
    if named_file is None:
        begin = time.monotonic()
        build(container, image, definition, build_arguments(container, definition, lock, wheels))
        seconds = round(time.monotonic() - begin, 1)
        facts = {"base": container.base, "compression": "zstd", "build_seconds": seconds}
    elif not image.is_file():
        raise UserError(
            f"the image {image} does not exist; set container.image in the site's file to an existing one, to one that "
            f"you built on another machine ({ELSEWHERE}), or, if this machine may build, to null."
        )
    image_labels = {} if container.srun_options else labels(container.command, image)
    report = ImageReport(
        path=str(image),
        sha256=sha256(image),
        bytes=image.stat().st_size,
        labels=image_labels,
        architecture=ARCHITECTURES.get(image_labels.get("org.label-schema.build-arch", "")),
        **facts,
        **pytorch(image_labels),
    )
    write_json(output, report.model_dump(mode="json"))
    print(f"{image}: {image.stat().st_size / 1e6:.0f} MB, sha256 {report.sha256}")


def build(container: Container, image: Path, definition: Path, values: dict[str, str]) -> None:
    """Build under a temporary name, then rename.

    Raises:
        UserError: apptainer failed; its own messages precede the error.
    """
    temporary = image.with_name(f".{image.name}.{os.getpid()}.tmp")
    arguments = [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]
    # Root does not need it, and apptainer requires an entry in /etc/subuid, which fresh systems do not have.
    flags = ([] if os.geteuid() == 0 else ["--fakeroot"]) if container.build_flags is None else container.build_flags
    words = [container.command, "build", "--force", *flags, "--mksquashfs-args", COMPRESSION, *arguments]
    # debootstrap is an administrator's program, whose folder is not on everybody's PATH.
    environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    try:
        files = [str(path.absolute()) for path in (temporary, definition)]
        if subprocess.run([*words, *files], env=environment, cwd=ROOT).returncode:
            raise UserError(
                f"{container.command} could not build {image}; see the error above. If this machine may not build "
                f"(container.build_flags), build on another one and set container.image ({ELSEWHERE})."
            )
        temporary.replace(image)
    finally:
        temporary.unlink(missing_ok=True)


def build_arguments(settings: Container, definition: Path, lock: Path, wheels: Path) -> dict[str, str]:
    """Return the values of the placeholders in the definition file.

    Raises:
        UserError: the wheels were collected for another Python than the base has.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if settings.base == "debootstrap" and python != "3.11":
        raise UserError(
            f"base debootstrap is Debian 12 with Python 3.11, but the wheels are those of Python {python}; run "
            "Snakemake with Python 3.11, or set container.base to docker."
        )
    mirror = settings.mirror or (debian.mirror() if settings.base == "debootstrap" else "none")
    versions = dict(re.findall(r"^(deepspeed)==(\S+)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE))
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = (
        subprocess.run(describe, cwd=ROOT, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    )
    return {
        "base": settings.base,
        "bootstrap": "debootstrap" if settings.base == "debootstrap" else "docker",
        "from": settings.rocm_image if settings.base == "rocm" else f"python:{python}-slim",
        "python": python,
        "oldest_torch": torch_releases.OLDEST,
        "mirror": mirror,
        # Relative: %files of a definition does not support spaces in paths.
        "wheelhouse": os.path.relpath(wheels.resolve(), ROOT),
        "lock": os.path.relpath(lock.resolve(), ROOT),
        "scripts": os.path.relpath(definition.resolve().parent, ROOT),
        "commit": commit or "unknown",
        "lock_sha256": sha256(lock),
        "definition_sha256": sha256(definition),
        "install_sha256": sha256(definition.with_name("install.sh")),
    } | versions


def labels(command: str, image: Path) -> dict[str, str]:
    """Return an image's labels, without those of its definition file: they name the mirror of this machine."""
    inspect = subprocess.run([command, "inspect", "--json", str(image)], capture_output=True, text=True)
    if inspect.returncode:
        raise UserError(f"{command} cannot read {image}: {inspect.stderr.strip()}; is it an Apptainer image?")
    image_labels = json.loads(inspect.stdout)["data"]["attributes"].get("labels") or {}
    return {name: value for name, value in image_labels.items() if ".deffile." not in name}


def pytorch(labelled: dict[str, str]) -> dict[str, str | int | None]:
    """Return the report's fields about an image's PyTorch, from its labels; None for missing labels."""
    versions: dict[str, str | None] = {name: labelled.get(f"shardlab.{name}") for name in ("torch", "cuda", "rocm")}
    return versions | {"driver": torch_releases.driver_needed(versions["cuda"])}


@program
def wheelhouse(
    lock: Path,
    output: Path,
    base: str = Container().base,
) -> None:
    """Collect the pinned wheels of the image, on the login node, with the pip settings of this machine."""
    folder = output.parent
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    lines = lock.read_text(encoding="utf-8").splitlines()
    if subprocess.run(pip_command(base, lock, lines, new)).returncode:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(f"pip could not collect the packages of {lock}; see the error above.")
    write_json(new / output.name, sorted(path.name for path in new.glob("*.whl")))
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def pip_command(base: str, lock: Path, lines: list[str], folder: Path) -> list[str]:
    """Build pip's command that puts the wheels of a lock file, given by its ``lines``, into ``folder``."""
    # `wheel`, not `download`: source packages are built here, so that the image needs no index for them either.
    collect = [sys.executable, "-m", "pip", "wheel", "--quiet", "--use-pep517", "--wheel-dir", str(folder)]
    if base != "rocm":
        return [*collect, "-r", str(lock)]
    pins = [line.split("#")[0].strip() for line in lines if re.match("[A-Za-z0-9]", line)]
    # The lock file has every package, and dependencies would bring PyTorch for CUDA back.
    return [*collect, "--no-deps", *(pin for pin in pins if not NOT_FOR_ROCM.match(pin))]
