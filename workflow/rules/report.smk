# The table of all runs, and the report: one page with charts, which opens offline.


localrules:
    summarize,
    report,


rule summarize:
    input:
        FILES.every_result(),
        "results/plan.md",
    output:
        "results/summary.csv",
        "results/summary.md",
        ["results/sweep.csv"] if CONFIG.sweep else [],
    log:
        "results/logs/summarize.log",
    conda:
        environment("workflow")
    params:
        config=CONFIG_JSON,
    message:
        "Summarizing all runs"
    shell:
        f"{SHARDLAB} summarize"
        " --config {params.config:q} --results results > {log:q} 2>&1"


rule report:
    input:
        FILES.every_result(),
        "results/summary.csv",
    output:
        "results/report.html",
        directory("results/charts"),
    log:
        "results/logs/report.log",
    conda:
        environment("workflow")
    params:
        config=CONFIG_JSON,
    message:
        "Drawing the report: results/report.html"
    shell:
        f"{SHARDLAB} report"
        " --config {params.config:q} --results results > {log:q} 2>&1"
