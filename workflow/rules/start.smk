# Checks before Snakemake reads the configuration, for mistakes that it would accept or answer with a traceback.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(SCRIPTS.resolve()))

from shardlab.errors import PROFILE, UserError
from shardlab.runs import call, signals
from shardlab.patches import snakemake_logging

snakemake_logging.respect_no_color()
# Jobs end with this process.
signals.announce_driver()
# Jobs inherit it, for the calls that their error messages name.
if profile := call.profile(sys.argv[1:]):
    os.environ.setdefault(PROFILE, profile)
try:
    call.check_folder(Path.cwd())
    # A workflow that uses this one as a module passes its configuration.
    if not workflow.modifier.skip_configfile:
        call.check_configuration([*workflow.configfiles, Path("config/config.yaml")])
except UserError as error:
    raise WorkflowError(str(error)) from None
