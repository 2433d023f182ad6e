# Training: frozen settings, one set of initial weights for all strategies, the ranks.


localrules:
    resolve,


rule resolve:
    output:
        "results/{strategy}/{workload}/run.json",
    log:
        "results/logs/resolve/{strategy}/{workload}.log",
    benchmark:
        "results/benchmarks/resolve/{strategy}/{workload}.tsv"
    conda:
        "../../envs/workflow.yaml"
    params:
        config=lambda wildcards: resolve.config_of(
            CONFIG, run_of(wildcards)
        ).model_dump_json(),
        # Not read below: this run's settings decide whether it is resolved, and trained, again.
        run=lambda wildcards: run_of(wildcards).model_dump_json(),
    message:
        "Resolving {wildcards.strategy} x {wildcards.workload}"
    shell:
        "python scripts/resolve.py --config {params.config:q} --strategy {wildcards.strategy}"
        " --workload {wildcards.workload} --output {output} > {log} 2>&1"


rule init:
    input:
        settings="results/single/{workload}/run.json",
        model=lambda wildcards: model_files(run_of(wildcards).model.folder),
        image=IMAGE,
    output:
        "results/init/{workload}.safetensors",
    log:
        "results/logs/init/{workload}.log",
    benchmark:
        "results/benchmarks/init/{workload}.tsv"
    conda:
        "../../envs/train.yaml"
    resources:
        **job_resources(runtime=10),
    params:
        image=[f"--image {path}" for path in IMAGE],
    message:
        "Drawing the initial weights of {wildcards.workload}"
    shell:
        "python scripts/launch.py init --settings {input.settings} {params.image}"
        " --output {output} > {log} 2>&1"


rule train:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=manifest,
        splits=splits,
        weights="results/init/{workload}.safetensors",
        image=IMAGE,
    output:
        weights="results/{strategy}/{workload}/model.safetensors",
        report="results/{strategy}/{workload}/train.json",
        done="results/{strategy}/{workload}.done",
    log:
        "results/logs/train/{strategy}/{workload}.log",
    benchmark:
        "results/benchmarks/train/{strategy}/{workload}.tsv"
    conda:
        "../../envs/train.yaml"
    threads: lambda wildcards: run_of(wildcards).cpus_per_node
    resources:
        **job_resources(ranks=lambda wildcards: True),
    params:
        image=[f"--image {path}" for path in IMAGE],
        data=subpath(input.data, parent=True),
        output=subpath(input.settings, parent=True),
    message:
        "Training {wildcards.workload} under {wildcards.strategy}"
    shell:
        "python scripts/launch.py train --settings {input.settings} {params.image}"
        " --data {params.data} --weights {input.weights} --output {params.output}"
        " --done {output.done} > {log} 2>&1"
