# Checks before Snakemake reads the configuration, for mistakes that it would accept or answer with a traceback.
import sys
from pathlib import Path

sys.path.insert(0, str(SCRIPTS.resolve()))

from shardlab.workflow import call_checks, call_start

with call_start.as_exit():
    call_start.begin(sys.argv[1:], Path.cwd())
    # A workflow that uses this one as a module passes its configuration.
    if not workflow.modifier.skip_configfile:
        call_checks.check_configuration(
            [*workflow.configfiles, Path("config/config.yaml")]
        )
