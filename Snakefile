# Shardlab: one model under every parallel strategy, shown to reach the same test loss.
from snakemake.utils import min_version

min_version("9.27")


include: "workflow/rules/start.smk"


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/image.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/diagnose.smk"
include: "workflow/rules/export.smk"
include: "workflow/rules/preflight.smk"


wildcard_constraints:
    # The other folders of results/ are not strategies.
    strategy=rf"(?!(?:{'|'.join(RESERVED)})/){variants.PATTERN}",
    workload=variants.PATTERN,
    dataset=r"\w+",
    model=r"[\w.-]+",


localrules:
    all,


rule all:
    default_target: True
    input:
        # Also the runs: a summary that was written while some were missing must not hide them.
        FILES.every_run(),
        "results/summary.csv",
        "results/summary.md",
        "results/report.html",
    message:
        "The report of all runs is results/report.html, its table results/summary.md"


onstart:
    call_start.start_forkserver(workflow.executor_plugin.name, SITE, Path.cwd())


# Snakemake's timestamp files would be published with the exported models; without one it uses the folder's time.
onsuccess:
    call_end.say_verdict(workflow.dag)
    for mark in Path("results/export").glob("*/*/.snakemake_timestamp"):
        mark.unlink()


# If runs are missing, table and report still name them and show the others, where a call was to make these.
onerror:
    if any(job.rule.name == "summarize" for job in workflow.dag.jobs):
        shell(
            f"{SHARDLAB} summarize"
            " --config {CONFIG_JSON:q} --results results"
            f" && {SHARDLAB} report"
            " --config {CONFIG_JSON:q} --results results"
            " && echo 'results/report.html shows what is there and what is missing.' || true"
        )
