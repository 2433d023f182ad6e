# The table of all runs.


localrules:
    summarize,


rule summarize:
    message:
        "Summarizing all runs"
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
    shell:
        "{PYTHON} scripts/summarize.py --config {CONFIG_JSON:q} --results results > {log} 2>&1"


# With runs missing, the table still says which ones, and what the others reached.
onerror:
    shell(
        "{PYTHON} scripts/summarize.py --config {CONFIG_JSON:q} --results results"
        " && echo 'results/summary.md shows what is there and what is missing.' || true"
    )
