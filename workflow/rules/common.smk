# Names that the rules use. What they stand for is computed by scripts/shardlab/workflow.
import json

from shardlab.settings import variants
from shardlab.settings.types import RESERVED, sealed
from shardlab.workflow import call_end, call_start, rule_files
from shardlab.workflow.call_runs import CallRuns
from shardlab.workflow.job_requests import JobRequests

with call_start.as_exit():
    call_start.take_over(sys.argv[1:], Path.cwd())
    CALL = CallRuns(config, sys.argv[1:], workflow.config_settings.overwrite_config)
    call_start.check_slurm(sys.argv[1:], CALL.config, CALL.site)
    REQUESTS = JobRequests(CALL)
    call_start.note_done(sys.argv[1:], Path.cwd(), CALL.requested.values(), CALL.frozen)

call_end.announce(workflow, CALL.site.slurm)

CONFIG, SITE = CALL.config, CALL.site
CONFIG_JSON = CONFIG.model_dump_json()
FILES = rule_files.RuleFiles(CALL)

# `ancient`: a new image does not cause retraining.
IMAGE = [ancient(path) for path in rule_files.image_of(SITE.container)]

# Rules use the Python that runs Snakemake, even if its environment is not activated.
PROGRAMS = Path(sys.executable).parent
shell.prefix("set -euo pipefail; export PATH={PROGRAMS:q}:$PATH; ")

# Writes run.json: this process resolved it when it read the configuration.
WRITE_SETTINGS = (
    "printf %s {params.run:q} | python -I -m json.tool --indent 2 > {output:q}.new"
    " && sync {output:q}.new && mv {output:q}.new {output:q}"
)


def launch(words):
    """Return the shell command of a rule that starts a stage, with these options, where the site says."""
    inputs = "--settings {input.settings:q} --image={input.image:q}"
    stage, _, options = words.partition(" ")
    return f"{SHARDLAB} launch {stage} {inputs} {options} > {{log:q}} 2>&1"


def sorted_json(settings):
    """Return settings as JSON that does not depend on the order of keys in a file."""
    return json.dumps(settings.model_dump(mode="json"), sort_keys=True)


def settings_json(settings):
    """Return the content of a run.json or site.json; "" without settings."""
    return json.dumps(sealed(settings)) if settings else ""


def environment(name):
    """A rule's conda environment, where the call may use it: Snakemake works it out for each job anew."""
    requested = workflow.deployment_settings.deployment_method or "--lint" in sys.argv
    return f"../../envs/{name}.yaml" if requested else None
