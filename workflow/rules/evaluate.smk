# What a training ended with: test loss and metric, and the distance of its weights from those of `single`.


# On one device, with the same code for every strategy; or, if the recipe says so, under the run's own strategy.
rule evaluate:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=FILES.prepared,
        done="results/{strategy}/{workload}.done",
        initial=FILES.initial_report,
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/test.json",
    log:
        "results/{strategy}/{workload}/logs/evaluate.log",
    conda:
        environment("train")
    threads: REQUESTS.threads("evaluate")
    resources:
        **REQUESTS.of_a_run("evaluate"),
    message:
        "Evaluating {wildcards.workload} trained under {wildcards.strategy}"
    shell:
        launch(
            'evaluate --data "$(dirname {input.data[0]:q})" '
            "--weights results/{wildcards.strategy:q}/{wildcards.workload:q}/model.safetensors "
            "--initial {input.initial:q} --output {output:q}"
        )


# A job of its own: a `single` that fails or takes long must not keep the test losses of the others.
rule compare:
    input:
        settings="results/{strategy}/{workload}/run.json",
        done="results/{strategy}/{workload}.done",
        single="results/single/{workload}.done",
        initial=FILES.initial_weights,
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/weights.json",
    log:
        "results/{strategy}/{workload}/logs/compare.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_a_run("compare", like="evaluate"),
    message:
        "Comparing the weights of {wildcards.workload} trained under {wildcards.strategy} with those of single"
    shell:
        launch(
            "compare --weights results/{wildcards.strategy:q}/{wildcards.workload:q}/model.safetensors "
            "--single results/single/{wildcards.workload:q}/model.safetensors --initial {input.initial:q} "
            "--output {output:q}"
        )
