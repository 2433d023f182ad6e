# Where this workflow's code is, and checks before Snakemake reads the configuration, for mistakes that it would accept or
# answer with a traceback.
import os
import shlex
import sys
from pathlib import Path

# Relative, as in most calls, so that a project that was moved has the same commands.
HERE = Path(os.path.relpath(workflow.basedir))
if HERE.parts[:1] == ("..",):
    HERE = Path(workflow.basedir)
# The command as words of a shell command, which Snakemake formats.
QUOTED = shlex.quote(str(HERE / "scripts/shardlab"))
SHARDLAB = f"python {QUOTED}".replace("{", "{{").replace("}", "}}")

sys.path.insert(0, str((HERE / "scripts").resolve()))

from shardlab.workflow import call_checks, call_start

with call_start.as_exit():
    call_start.begin(sys.argv[1:], Path.cwd())
    call_checks.check_configuration([*workflow.configfiles, Path("config/config.yaml")])
