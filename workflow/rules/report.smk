# The table of all runs, and the report: one page with charts, which opens offline.


localrules:
    summarize,
    report,


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


rule report:
    input:
        "results/summary.csv",
    output:
        html="results/report.html",
        charts=directory("results/charts"),
    log:
        "results/logs/report.log",
    benchmark:
        "results/benchmarks/report.tsv"
    conda:
        "../../envs/workflow.yaml"
    params:
        config=CONFIG_JSON,
    message:
        "Drawing the report: results/report.html"
    shell:
        "python scripts/report.py --config {params.config:q} --results results > {log} 2>&1"
