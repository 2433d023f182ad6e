# Export of a run's weights to a transformers folder, checked to have the same test loss.
rule export:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=FILES.prepared,
        done="results/{strategy}/{workload}.done",
        test="results/{strategy}/{workload}/test.json",
        image=IMAGE,
    output:
        directory("results/export/{strategy}/{workload}"),
    log:
        "results/logs/export/{strategy}/{workload}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_a_run("export", like="evaluate"),
    params:
        weights=lambda wildcards, input: str(
            Path(input.settings).with_name("model.safetensors")
        ),
    message:
        "Exporting {wildcards.workload} trained under {wildcards.strategy}"
    shell:
        launch(
            'export --data "$(dirname {input.data[0]:q})" --weights {params.weights:q} --output {output:q}'
        )
