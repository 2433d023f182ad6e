# Test loss and metric: one device, the same code for every strategy and for the initial weights.


rule evaluate_untrained:
    input:
        settings="results/single/{workload}/run.json",
        data=manifest,
        splits=splits,
        weights="results/init/{workload}.safetensors",
        image=IMAGE,
    output:
        "results/init/{workload}.json",
    log:
        "results/logs/evaluate_untrained/{workload}.log",
    benchmark:
        "results/benchmarks/evaluate_untrained/{workload}.tsv"
    conda:
        "../../envs/train.yaml"
    resources:
        **job_resources(runtime=30),
    params:
        image=[f"--image {path}" for path in IMAGE],
        data=subpath(input.data, parent=True),
    message:
        "Evaluating the initial weights of {wildcards.workload}"
    shell:
        "python scripts/launch.py evaluate --settings {input.settings} {params.image} --data {params.data}"
        " --weights {input.weights} --output {output} > {log} 2>&1"


rule evaluate:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=manifest,
        splits=splits,
        weights="results/{strategy}/{workload}/model.safetensors",
        done="results/{strategy}/{workload}.done",
        untrained="results/init/{workload}.json",
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/test.json",
    log:
        "results/logs/evaluate/{strategy}/{workload}.log",
    benchmark:
        "results/benchmarks/evaluate/{strategy}/{workload}.tsv"
    conda:
        "../../envs/train.yaml"
    resources:
        **job_resources(runtime=30),
    params:
        image=[f"--image {path}" for path in IMAGE],
        data=subpath(input.data, parent=True),
    message:
        "Evaluating {wildcards.workload} trained under {wildcards.strategy}"
    shell:
        "python scripts/launch.py evaluate --settings {input.settings} {params.image} --data {params.data}"
        " --weights {input.weights} --untrained {input.untrained} --output {output}"
        " > {log} 2>&1"
