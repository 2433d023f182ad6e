"""Apptainer for a Debian without its package: unstable's, in a separate folder."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from shardlab.runs import debian

HOME = Path("/opt/shardlab-apptainer")
PROGRAM = HOME / "usr/bin/apptainer"
LINK = Path("/usr/local/bin/apptainer")


def install() -> None:
    """Put ``apptainer`` on the PATH, unless one is there.

    Unstable's package is built against a newer C library. That library is unpacked next to the programs
    and named in their headers, so the system's stays unchanged.
    """
    if shutil.which("apptainer"):
        return
    if not PROGRAM.exists():
        with tempfile.TemporaryDirectory() as folder:
            _unpack(Path(folder))
    LINK.symlink_to(PROGRAM)


def _unpack(folder: Path) -> None:
    new = HOME.with_name(f".{HOME.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for package in _download(folder, "apptainer", "libc6"):
        where = new / "libc" if package.name.startswith("libc6") else new
        subprocess.run(["dpkg-deb", "-x", package, where], check=True)
    # Both programs look for their settings relative to their own path, but strip a different number of folders.
    for prefix, up in (("usr", ".."), ("usr/lib", "../..")):
        for name in ("etc", "var"):
            (new / prefix / name).symlink_to(f"{up}/{name}")
    libraries = next(new.glob("libc/**/ld-linux-x86-64.so.2")).resolve().parent
    system = "/usr/lib/x86_64-linux-gnu"
    final = HOME / libraries.relative_to(new)
    for program in (new / "usr/bin/apptainer", *new.glob("usr/lib/*/apptainer/bin/starter")):
        header = ["--set-interpreter", final / "ld-linux-x86-64.so.2", "--force-rpath"]
        subprocess.run(["patchelf", *header, "--set-rpath", f"{final}:{system}", program], check=True)
    shutil.rmtree(HOME, ignore_errors=True)
    new.rename(HOME)


def _download(folder: Path, *packages: str) -> list[Path]:
    """Fetch packages of unstable from the mirror that this Debian uses, without adding unstable to it."""
    for name in ("lists/partial", "cache/archives/partial", "packages"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    sources = folder / "sources.list"
    sources.write_text(f"deb {debian.mirror()} unstable main\n")
    places = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(word for key, value in places.items() for word in ("-o", f"{key}={value}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *packages], check=True, cwd=folder / "packages")
    return sorted((folder / "packages").glob("*.deb"))
