# Predicted memory, operations, traffic and time of the runs, from their engines' steps on fake tensors. No training.


rule plan:
    input:
        settings=ancient("results/site.json"),
        data=FILES.every_data_set(),
        models=FILES.every_model(),
        image=IMAGE,
    output:
        table="results/plan.md",
        plans=directory("results/plans"),
    log:
        "results/logs/plan.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_one_device("plan"),
    params:
        config=CONFIG_JSON,
        image=in_image,
    message:
        "Planning all runs"
    shell:
        f"{SHARDLAB} launch"
        " plan --settings {input.settings:q} {params.image:q} --config {params.config:q}"
        " --results {output.plans:q} --table {output.table:q} > {log:q} 2>&1"


rule plan_run:
    input:
        settings=ancient("results/site.json"),
        data=FILES.prepared,
        models=FILES.model,
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/plan.json",
    log:
        "results/{strategy}/{workload}/logs/plan.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_one_device("plan"),
    params:
        # Triggers planning again; other figures of the site's hardware do not.
        identity=CALL.identity_of,
        config=lambda wildcards, input: CONFIG.without_sweep.model_dump_json(),
        image=in_image,
    message:
        "Planning {wildcards.workload} under {wildcards.strategy}"
    shell:
        f"{SHARDLAB} launch"
        " plan --settings {input.settings:q} {params.image:q} --config {params.config:q}"
        " --strategy {wildcards.strategy:q} --workload {wildcards.workload:q} > {log:q} 2>&1"
