"""The simulated accelerator of tests/accelerator, compiled once for each version of its code and of PyTorch."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from helpers.common import ROOT

SOURCE = ROOT / "tests" / "accelerator"
ENTRY = "[torch.backends]\nsim = sim:start\n"
TORCH, PYTHON = Path(torch.__file__).parent, Path(sysconfig.get_paths()["include"])


def environment(**values):
    """What a process needs in its environment to have simulated devices; ``values``: see sim.py."""
    path = os.pathsep.join([str(built()), str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path} | values


def built():
    """The folder of the compiled part; takes half a minute where it is not there yet."""
    compiler = shutil.which("g++")
    if compiler is None or not (PYTHON / "Python.h").exists():
        pytest.skip("no compiler here: g++ or Python.h missing (Debian: g++, python3-dev)")
    code = b"".join(path.read_bytes() for path in sorted((SOURCE / "csrc").iterdir()))
    version = hashlib.sha256(code + torch.__version__.encode()).hexdigest()[:16]
    folder = Path(sys.prefix) / "accelerator" / version
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            (new / "sim-1.dist-info").mkdir(parents=True)
            (new / "sim-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sim\nVersion: 1\n")
            (new / "sim-1.dist-info" / "entry_points.txt").write_text(ENTRY)
            compile_into(compiler, new / "_sim.so")
            new.rename(folder)
    return folder


def compile_into(compiler, output):
    """Compile the part in C++."""
    include = [TORCH / "include", TORCH / "include/torch/csrc/api/include", PYTHON]
    words = ["-shared", "-fPIC", "-std=c++20", "-O1", "-w", "-DTORCH_EXTENSION_NAME=_sim", "-DUSE_C10D_GLOO"]
    words += [f"-I{path}" for path in include] + [SOURCE / "csrc" / "module.cpp", "-o", output]
    words += [f"-L{TORCH / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python", f"-Wl,-rpath,{TORCH / 'lib'}"]
    done = subprocess.run([compiler, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
