# The table of all runs.
import shlex


localrules:
    summarize,


rule summarize:
    input:
        [f"results/{run.strategy}/{run.workload}/train.json" for run in RUNS],
        [f"results/{run.strategy}/{run.workload}/test.json" for run in RUNS],
    output:
        csv="results/summary.csv",
        md="results/summary.md",
    log:
        "results/logs/summarize.log",
    benchmark:
        "results/benchmarks/summarize.tsv"
    conda:
        "../../envs/workflow.yaml"
    params:
        config=CONFIG.model_dump_json(),
    message:
        "Summarizing all runs"
    shell:
        "python scripts/summarize.py --config {params.config:q} --results results > {log} 2>&1"


# With runs missing, the table still says which ones, and what the others reached.
onerror:
    shell(
        f"python scripts/summarize.py --config {shlex.quote(CONFIG.model_dump_json())} --results results"
        " && echo 'results/summary.md shows what is there and what is missing.' || true"
    )
