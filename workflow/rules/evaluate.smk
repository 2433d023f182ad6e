# Test loss and metric: one device, the same code for every strategy and for the initial weights; or, where the
# recipe says so, under the run's own strategy.


rule evaluate_untrained:
    input:
        settings="results/init/{workload}/run.json",
        data=prepared,
        weights="results/init/{workload}.safetensors",
        image=IMAGE,
    output:
        "results/init/{workload}.json",
    log:
        "results/logs/evaluate_untrained/{workload}.log",
    benchmark:
        "results/benchmarks/evaluate_untrained/{workload}.tsv"
    conda:
        environment("train")
    resources:
        **job_resources("init", runtime=30, job="evaluate"),
    params:
        image=IN_IMAGE,
    message:
        "Evaluating the initial weights of {wildcards.workload}"
    shell:
        f"python {SCRIPTS}/launch.py"
        " evaluate --settings {input.settings} {params.image} --data $(dirname {input.data[0]})"
        " --weights {input.weights} --output {output} > {log} 2>&1"


rule evaluate:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=prepared,
        done="results/{strategy}/{workload}.done",
        untrained=lambda wildcards: (
            []
            if run_of(wildcards).evaluated_sharded
            else [initial("results/init/{}.json")(wildcards)]
        ),
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/test.json",
    log:
        "results/{strategy}/{workload}/logs/evaluate.log",
    benchmark:
        "results/{strategy}/{workload}/benchmarks/evaluate.tsv"
    conda:
        environment("train")
    threads: job_threads("evaluate")
    resources:
        **job_resources("evaluate", runtime=30),
    params:
        image=IN_IMAGE,
    message:
        "Evaluating {wildcards.workload} trained under {wildcards.strategy}"
    shell:
        f"python {SCRIPTS}/launch.py"
        " evaluate --settings {input.settings} {params.image} --data $(dirname {input.data[0]})"
        " --weights results/{wildcards.strategy}/{wildcards.workload}/model.safetensors"
        " --untrained {input.untrained} --output {output}"
        " > {log} 2>&1"
