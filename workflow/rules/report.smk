# The table of all runs, and the report: one page with charts, which opens offline.


localrules:
    summarize,
    report,


rule summarize:
    input:
        FILES.every_result(),
        "results/plan.md",
    output:
        csv=report(
            "results/summary.csv",
            caption="../report/summary.rst",
            category="Results",
            labels={"what": "figures of all runs"},
        ),
        md="results/summary.md",
        sweep=["results/sweep.csv"] if CONFIG.sweep else [],
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
        html=report(
            "results/report.html",
            caption="../report/page.rst",
            category="Results",
            labels={"what": "report of all runs"},
        ),
        charts=report(
            directory("results/charts"),
            patterns=["{chart}.svg"],
            caption="../report/chart.rst",
            category="Charts",
            labels={"chart": "{chart}"},
        ),
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
