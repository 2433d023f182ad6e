# Predicted memory, operations and traffic of the runs, from their engines' steps on fake tensors. No training.


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
        # Triggers planning again; other figures of the site's hardware do not.
        identity=CALL.identity_of_all,
        config=CONFIG_JSON,
    message:
        "Planning all runs"
    shell:
        launch(
            "plan --config {params.config:q} --results {output.plans:q} --table {output.table:q}"
        )
