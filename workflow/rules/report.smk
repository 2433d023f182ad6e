# The table of all runs.


localrules:
    summarize,


rule summarize:
    input:
        [f"results/{run.strategy}/{run.workload}.done" for run in RUNS],
        [f"results/{run.strategy}/{run.workload}/test.json" for run in RUNS],
        [f"results/twins/{workload}.json" for workload in TWINNED],
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
        config=CONFIG_JSON,
    message:
        "Summarizing all runs"
    shell:
        "python scripts/summarize.py --config {params.config:q} --results results > {log} 2>&1"
