# Test loss and metric: one device, the same code for every strategy and for the initial weights; or, where the
# recipe says so, under the run's own strategy.


rule evaluate_untrained:
    input:
        settings="results/init/{workload}/run.json",
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
        **job_resources("init", runtime=30, job="evaluate"),
    params:
        image=[f"--image {path}" for path in IMAGE],
        data=subpath(input.data, parent=True),
    message:
        "Evaluating the initial weights of {wildcards.workload}"
    shell:
        f"python {SCRIPTS}/launch.py"
        " evaluate --settings {input.settings} {params.image} --data {params.data}"
        " --weights {input.weights} --output {output} > {log} 2>&1"


rule evaluate:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=manifest,
        splits=splits,
        done="results/{strategy}/{workload}.done",
        untrained=lambda wildcards: (
            []
            if run_of(wildcards).evaluated_sharded
            else [initial(".json")(wildcards)]
        ),
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/test.json",
    log:
        "results/{strategy}/{workload}/logs/evaluate.log",
    benchmark:
        "results/{strategy}/{workload}/benchmarks/evaluate.tsv"
    conda:
        "../../envs/train.yaml"
    threads: job_threads("evaluate")
    resources:
        **job_resources("evaluate", runtime=30),
    params:
        untrained=lambda wildcards, input: [
            f"--untrained {path}" for path in input.untrained
        ],
        image=[f"--image {path}" for path in IMAGE],
        data=subpath(input.data, parent=True),
        weights=lambda wildcards, input: str(
            Path(input.settings).with_name("model.safetensors")
        ),
    message:
        "Evaluating {wildcards.workload} trained under {wildcards.strategy}"
    shell:
        f"python {SCRIPTS}/launch.py"
        " evaluate --settings {input.settings} {params.image} --data {params.data}"
        " --weights {params.weights} {params.untrained} --output {output}"
        " > {log} 2>&1"
