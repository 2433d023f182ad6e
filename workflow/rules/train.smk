# Training: frozen settings, one set of initial weights for all strategies, the ranks.


localrules:
    resolve,


rule resolve:
    output:
        "results/{strategy}/{workload}/run.json",
    log:
        "results/{strategy}/{workload}/logs/resolve.log",
    benchmark:
        "results/{strategy}/{workload}/benchmarks/resolve.tsv"
    conda:
        "../../envs/workflow.yaml"
    params:
        run=lambda wildcards: run_of(wildcards).model_dump_json(),
    message:
        "Resolving {wildcards.strategy} x {wildcards.workload}"
    shell:
        "python scripts/resolve.py --run {params.run:q} --output {output} > {log} 2>&1"


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
        **job_resources("init", runtime=10),
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
        "results/{strategy}/{workload}/logs/train.log",
    benchmark:
        "results/{strategy}/{workload}/benchmarks/train.tsv"
    conda:
        "../../envs/train.yaml"
    threads: job_threads("train")
    resources:
        **job_resources("train"),
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
