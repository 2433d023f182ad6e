# Step time of a pipeline over the number of micro-batches, and its bubble.
rule microbatch_sweep:
    input:
        data=FILES.prepared,
        weights="results/init/{workload}.safetensors",
        image=IMAGE,
    output:
        table="results/microbatch_sweep/{workload}.csv",
        picture=report(
            "results/microbatch_sweep/{workload}.svg",
            caption="../report/microbatch_sweep.rst",
            category="Studies",
            labels={"what": "micro-batches", "of": "{workload}"},
        ),
    log:
        "results/logs/microbatch_sweep/{workload}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_the_configuration("microbatch_sweep"),
    params:
        config=CONFIG_JSON,
        image=in_image,
    message:
        "Splitting the batches of {wildcards.workload}"
    shell:
        f"{SHARDLAB} microbatch_sweep"
        " --config {params.config:q} --workload {wildcards.workload:q} {params.image:q}"
        ' --data "$(dirname {input.data[0]:q})" --weights {input.weights:q} --output {output.table:q} > {log:q} 2>&1'
