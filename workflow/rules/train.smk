# Training: frozen settings, one set of initial weights for all strategies, the ranks.


localrules:
    resolve,


rule resolve:
    message:
        "Resolving {wildcards.strategy} x {wildcards.workload}"
    output:
        "results/{strategy}/{workload}/run.json",
    params:
        # Not read below: this run's settings decide whether it is resolved, and trained, again.
        run=lambda wildcards: run_of(wildcards).model_dump_json(),
    log:
        "results/logs/resolve/{strategy}/{workload}.log",
    benchmark:
        "results/benchmarks/resolve/{strategy}/{workload}.tsv"
    conda:
        "../../envs/workflow.yaml"
    shell:
        "{PYTHON} scripts/resolve.py --config {CONFIG_JSON:q} --strategy {wildcards.strategy}"
        " --workload {wildcards.workload} --output {output} > {log} 2>&1"


rule init:
    message:
        "Drawing the initial weights of {wildcards.workload}"
    input:
        "results/single/{workload}/run.json",
    output:
        "results/init/{workload}.safetensors",
    log:
        "results/logs/init/{workload}.log",
    benchmark:
        "results/benchmarks/init/{workload}.tsv"
    conda:
        "../../envs/train.yaml"
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        "{PYTHON} scripts/init.py --settings {input} --output {output} > {log} 2>&1"


rule train:
    message:
        "Training {wildcards.workload} under {wildcards.strategy}"
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=manifest,
        splits=splits,
        weights="results/init/{workload}.safetensors",
    output:
        weights="results/{strategy}/{workload}/model.safetensors",
        report="results/{strategy}/{workload}/train.json",
        done="results/{strategy}/{workload}.done",
    params:
        data=subpath(input.data, parent=True),
    log:
        "results/logs/train/{strategy}/{workload}.log",
    benchmark:
        "results/benchmarks/train/{strategy}/{workload}.tsv"
    conda:
        "../../envs/train.yaml"
    threads: lambda wildcards: run_of(wildcards).cpus_per_node
    resources:
        nodes=lambda wildcards: run_of(wildcards).nodes,
        mem_mb=lambda wildcards: 2000 * run_of(wildcards).ranks_per_node,
        runtime=60,
    shell:
        "{PYTHON} scripts/launch.py --settings {input.settings} --data {params.data}"
        " --weights {input.weights} --done {output.done} > {log} 2>&1"
