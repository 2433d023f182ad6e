"""Fork servers for tests: PyTorch is imported once for all jobs of the same programs."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from helpers.common import ROOT, tiny_run
from shardlab.runs import commands, forkserver


@cache
def server(command=(ROOT / "scripts/shardlab",)):
    """Environment with which verbs of a command are forked from a server, which ends with this process."""
    site = tiny_run("mlp").site
    variables = commands.environment(site)
    inherited = {key: value for key, value in os.environ.items() if key not in site.environment_clear}
    folder = Path(tempfile.mkdtemp(prefix="shardlab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with forkserver.listen(folder) as listener:
        subprocess.Popen(
            [sys.executable, *command, "forkserver", folder, str(os.getpid()), *variables],
            stdin=listener.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=inherited | variables | {"PYTHONPATH": str(ROOT / "scripts")},
            start_new_session=True,
        )
    return {forkserver.ADDRESS: str(folder)}
