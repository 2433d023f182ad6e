# Predicted memory, operations, traffic and time of the runs, from their engines' steps on fake tensors. No training.


rule plan:
    input:
        settings=ancient("results/site.json"),
        data=[file for name in DATA_SETS for file in prepared_files(name)],
        models=[file for folder in MODEL_FOLDERS for file in model_files(folder)],
        image=IMAGE,
    output:
        table="results/plan.md",
        plans=directory("results/plans"),
    log:
        "results/logs/plan.log",
    conda:
        environment("train")
    resources:
        **slurm.resources(SITE, "plan", 1, 1, runtime=60),
    params:
        config=CONFIG_JSON,
        image=IN_IMAGE,
    message:
        "Planning all runs"
    shell:
        f"{SHARDLAB} launch"
        " plan --settings {input.settings:q} {params.image:q} --config {params.config:q}"
        " --results {output.plans:q} --table {output.table:q} > {log:q} 2>&1"


rule plan_run:
    input:
        settings=ancient("results/site.json"),
        data=prepared,
        models=lambda wildcards: model_files(run_of(wildcards).model.folder),
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/plan.json",
    log:
        "results/{strategy}/{workload}/logs/plan.log",
    conda:
        environment("train")
    resources:
        **slurm.resources(SITE, "plan", 1, 1, runtime=60),
    params:
        # Triggers planning again; other figures of the site's hardware do not.
        identity=identity_of,
        config=lambda wildcards, input: ONE_JSON,
        image=IN_IMAGE,
    message:
        "Planning {wildcards.workload} under {wildcards.strategy}"
    shell:
        f"{SHARDLAB} launch"
        " plan --settings {input.settings:q} {params.image:q} --config {params.config:q}"
        " --strategy {wildcards.strategy:q} --workload {wildcards.workload:q} > {log:q} 2>&1"
