# Helpers of the rules, based on scripts/shardlab/settings.
import json
import os
from functools import cache

from shardlab.runs import (
    slurm_reattach,
    snakemake_lock,
    forkserver,
    commands,
    slurm,
    stages,
)
from shardlab.patches import snakemake_dag, snakemake_scheduler
from shardlab.records import plan
from shardlab.settings import (
    contents,
    run_identity,
    model_and_data,
    load,
    pretrained,
    resolve,
    variants,
)
from shardlab.settings.types import RESERVED, sealed

# Also in a dry run.
snakemake_dag.ancient_inputs_decide_nothing()

# After a kill the same call goes on, without --unlock.
WORKS = snakemake_lock.runs_jobs(sys.argv[1:])
if WORKS:
    try:
        snakemake_lock.clear_stale_locks(Path.cwd())
    except UserError as error:
        raise WorkflowError(str(error)) from None
    slurm_reattach.install(Path.cwd())
    snakemake_scheduler.install()
    if sys.stderr.isatty():
        from shardlab.runs import progress

        progress.install(Path.cwd())


def resolved(strategy, workload):
    """Return the settings of a run, resolved once."""
    name = strategy, workload
    if name not in known:
        known[name] = resolve.run(CONFIG, *name)
    return known[name]


# Every mistake in the configuration or the targets ends the workflow here, before any job starts: an
# error in an input function would show a traceback.
try:
    CONFIG = load.config(config)
    SITE = load.site(CONFIG)
    # A job reads this file again for its own run alone: one of a sweep of thousands must not wait for all.
    RUNS = [] if snakemake_lock.of_one_run(sys.argv[1:]) else resolve.matrix(CONFIG)[0]
    known = {(run.strategy, run.workload): run for run in RUNS}
    asked_for = dict(known)
    # Runs that the call names, if it wants no others.
    named = {}
    for target in call.targets(sys.argv[1:]):
        run = resolved(target.strategy, target.workload)
        model_and_data.check_shared(CONFIG, run)
        if target.exported:
            pretrained.check_export(run.model)
        else:
            asked_for[target.strategy, target.workload] = run
            named[target.strategy, target.workload] = run
    if WORKS:
        snakemake_lock.note_done(Path.cwd(), asked_for.values())
except UserError as error:
    raise WorkflowError(str(error)) from None

# Data sets and models of all runs of the call.
DATA_SETS = sorted({run.data.name for run in RUNS})
MODEL_FOLDERS = sorted({run.model.folder for run in RUNS if run.model.folder})

# Workloads whose `single` gets twins, and runs whose weights are compared with those of `single`, for the table.
NOISE_FLOOR_WORKLOADS = resolve.twinned(CONFIG, RUNS)
COMPARED = resolve.compared(CONFIG, RUNS)
CONFIG_JSON = CONFIG.model_dump_json()
ONE_JSON = CONFIG.of_one.model_dump_json()

# Rules use the Python that runs Snakemake, even if its environment is not activated.
PROGRAMS = Path(sys.executable).parent
shell.prefix("set -euo pipefail; export PATH={PROGRAMS:q}:$PATH; ")

# Writes run.json: this process resolved it when it read the configuration.
WRITE_SETTINGS = (
    "printf %s {params.run:q} | python -I -m json.tool --indent 2 > {output:q}.new"
    " && sync {output:q}.new && mv {output:q}.new {output:q}"
)

# Report of the runs' image; empty for a site without one. `ancient`: a new image does not cause retraining.
IMAGE = []
if SITE.container.enabled:
    IMAGE = [
        ancient(
            "containers/named.image.json"
            if SITE.container.image
            else "containers/train.image.json"
        )
    ]
# `shardlab launch`'s option for it.
IN_IMAGE = [f"--image={path}" for path in IMAGE]


def prepared_files(name):
    """Return the files of a prepared data set: its manifest, which is written last, and the samples."""
    files = (f"{split}.safetensors" for split in ("train", "validation", "test"))
    return [f"data/prepared/{name}/{file}" for file in ("dataset.json", *files)]


def plan_needed(wildcards):
    """Return the plan of a run whose recomputation depends on it; empty for other runs."""
    run = run_of(wildcards)
    if run.recipe.activation_checkpointing != "auto":
        return []
    return [f"results/{run.strategy}/{run.workload}/plan.json"]


def environment(name):
    """A rule's conda environment, where the call may use it: Snakemake works it out for each job anew."""
    requested = workflow.deployment_settings.deployment_method or "--lint" in sys.argv
    return f"../../envs/{name}.yaml" if requested else None


def every_result():
    """Return what the table and the report are made from: all runs, their noise floors, differences and plans."""
    floors = [
        f"results/noise_floor/{workload}.json" for workload in NOISE_FLOOR_WORKLOADS
    ]
    differences = [
        f"results/{run.strategy}/{run.workload}/weights.json" for run in COMPARED
    ]
    return [*every_run(), *floors, *differences, "results/plans"]


def every_run():
    """Return the files that mark all runs as trained and evaluated."""
    folders = [Path("results", run.strategy, run.workload) for run in RUNS]
    return [f"{folder}.done" for folder in folders] + [
        str(folder / "test.json") for folder in folders
    ]


@cache
def initialization(workload):
    """Return the settings of the job that draws a workload's initial weights, and the digest of these settings."""
    run = resolve.initialization(resolved("single", workload))
    return run, run_identity.identity_of(run, "").run


@cache
def strategies_of(workload):
    """Return what the initial weights' job needs to know of the strategies that this call trains from them, as JSON."""
    runs = named.values() if named and "all" not in sys.argv else asked_for.values()
    # A call of another Snakemake for this job alone knows the other's configuration, but not its targets.
    if not runs and "strategies" in workflow.config_settings.overwrite_config:
        runs = resolve.matrix(CONFIG)[0]
    return contents.reduced(
        run for run in runs if resolve.weights_of(run.workload) == workload
    )


@cache
def identified(strategy, workload):
    """Return the digest of a run's settings and sources."""
    return run_identity.identity_of(resolved(strategy, workload), "").run


def run_of(wildcards):
    """Return the settings of the wildcards' run; without a strategy, those of the workload's initial weights."""
    if "strategy" in wildcards.keys():
        return resolved(wildcards.strategy, wildcards.workload)
    return initialization(wildcards.workload)[0]


def plan_of(wildcards, input):
    """Return the plan of a run: the job's input, or else one that an earlier call made; None without one.

    Raises:
        UserError: the input is not the plan of this run.
    """
    run = run_of(wildcards)
    if not input.plan:
        return plan.find(run, *plan.places(Path("results"), run))
    os.stat(input.plan[0])  # Snakemake calls this again when the file exists
    return plan.read(Path(input.plan[0]), run)


def frozen(wildcards, input):
    """Return the settings of a run for run.json, and an error, a warning or a note for its log; empty without one."""
    run = run_of(wildcards)
    refuse = CONFIG.on_memory_overflow == "refuse"
    try:
        return plan.freeze(run, plan_of(wildcards, input), SITE.hardware, refuse=refuse)
    except UserError as error:  # it ends the job
        return run, f"error: {error}"


def site_ranks():
    """Return the settings of the ranks that this call has, whatever they do."""
    try:
        return resolve.ranks(CONFIG)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def settings_json(run):
    """Return the content of a run.json or site.json."""
    return json.dumps(sealed(run))


def initial(file):
    """Return an input function for a file of a run's initial weights, which variants of a workload share."""
    return lambda wildcards: file.format(resolve.weights_of(wildcards.workload))


def data_of(wildcards):
    """Settings of the data set that the wildcards name."""
    return model_and_data.data_set(CONFIG, wildcards.dataset)


def model_of(wildcards):
    """Settings of the transformers model that is downloaded to a folder of that name; with weights if a run needs them."""
    folder = f"data/models/{wildcards.model}"
    found = model_and_data.model(CONFIG, folder)
    runs = [run for run in asked_for.values() if run.model.folder == folder]
    starts = any(run.model.pretrained for run in runs) if runs else found.pretrained
    return found.model_copy(update={"pretrained": starts})


def model_files(folder, reads=()):
    """Return the file that marks a transformers model's folder as complete; empty for the project's own models.

    A folder of the user's is not marked: those of its files that a job ``reads``, as patterns, are inputs, too.
    """
    if folder is None:
        return []
    if Path(folder).parent == Path("data/models"):
        return [f"{folder}/download.json"]
    return [
        f"{folder}/{name}"
        for pattern in ("config.json", *reads)
        for name in sorted(path.name for path in Path(folder).glob(pattern))
    ]


def prepared(wildcards):
    """Return the files of a run's prepared data set."""
    return prepared_files(run_of(wildcards).data.name)


def download_of(wildcards):
    """Return the settings of a data set that affect its download."""
    kept = {"seed": 0, "options": {}, "tokenizer": None, "model": {}, "sources": {}}
    return data_of(wildcards).model_copy(update=kept)


def downloads(wildcards):
    """Return the downloads that a run needs."""
    run = run_of(wildcards)
    data = [f"data/raw/{run.data.name}/download.json"] if run.data.hub else []
    return data + model_files(run.model.folder)


def identity_of(wildcards):
    """Return the digest of the settings and sources of ``run_of``."""
    if "strategy" in wildcards.keys():
        return identified(wildcards.strategy, wildcards.workload)
    return initialization(wildcards.workload)[1]


def job_resources(stage, runtime=None, job=None):
    """Return the Slurm resources of a stage's jobs: what `shardlab launch` will start. ``job``: its name in the site's file."""

    def requested(wildcards):
        run = run_of(wildcards)
        return slurm.resources(
            SITE, job or stage, *stages.scope(stage, run).size(run), runtime
        )

    # Use functions only for what depends on the size: Snakemake calls each several times per job.
    found = [slurm.resources(SITE, job or stage, n, n, runtime) for n in (1, 2, 3, 64)]
    return {
        key: (
            value
            if all(other[key] == value for other in found)
            else lambda wildcards, key=key: requested(wildcards)[key]
        )
        for key, value in found[0].items()
    }


def job_threads(stage):
    """Return the CPU cores per node of a stage's job."""

    def requested(wildcards):
        run = run_of(wildcards)
        return (
            run.cpus_per_node if stages.scope(stage, run) is stages.Scope.RANKS else 1
        )

    return requested


def configured_resources(stage):
    """Return the resources of a job on the configuration's nodes and ranks, whatever the strategy."""
    return slurm.resources(SITE, stage, CONFIG.nodes, CONFIG.ranks_per_node, runtime=10)


def start_forkserver():
    """Start a fork server before the first job if jobs run on this machine's CPU, so that imports happen once."""
    site = SITE.place()
    if workflow.executor_plugin.name == "local" and site.device == "cpu" and not IMAGE:
        forkserver.start(Path.cwd(), commands.environment(site), site.environment_clear)


def check_executor():
    """Check before the first job, except in a dry run, that a site exists for Slurm jobs."""
    if workflow.executor_plugin.name != "slurm":
        return
    if problem := slurm.path_obstacle(sys.executable):
        raise WorkflowError(f"{problem}.")
    if SITE.slurm is None:
        raise WorkflowError(
            f"site {CONFIG.site} has no `slurm:` section, and this call submits to Slurm; choose your cluster with "
            "--config site=NAME (a file in config/sites), or run --profile workflow/profiles/local."
        )
