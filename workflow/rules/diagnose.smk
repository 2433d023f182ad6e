# Where a run first differs from single, how, and what usually causes that: on request, such as for an unequal run.


rule capture:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=FILES.prepared,
        weights=FILES.initial_weights,
        done=FILES.dumping_training,
        image=IMAGE,
    output:
        temp(directory("results/diagnosis/{strategy}/{workload}.capture")),
    log:
        "results/logs/diagnosis/{strategy}/{workload}.capture.log",
    conda:
        environment("train")
    threads: REQUESTS.threads("capture")
    resources:
        **REQUESTS.of_a_run("capture", like="train"),
    message:
        "Capturing the first steps of {wildcards.workload} under {wildcards.strategy}"
    shell:
        launch(
            'capture --data "$(dirname {input.data[0]:q})" --weights {input.weights:q} --output {output:q}'
        )


rule diagnose:
    input:
        settings="results/single/{workload}/run.json",
        like="results/{strategy}/{workload}/run.json",
        data=FILES.prepared,
        weights=FILES.initial_weights,
        capture="results/diagnosis/{strategy}/{workload}.capture",
        image=IMAGE,
    output:
        "results/diagnosis/{strategy}/{workload}.md",
    log:
        "results/logs/diagnosis/{strategy}/{workload}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_a_run("diagnose", like="evaluate"),
    message:
        "Comparing the first steps of {wildcards.workload} under {wildcards.strategy} with single"
    shell:
        launch(
            'diagnose --like {input.like:q} --data "$(dirname {input.data[0]:q})" '
            "--weights {input.weights:q} --other {input.capture:q} --output {output:q}"
        )
