# Step time of a pipeline over the number of micro-batches, and its bubble beside the theory.
rule split_size:
    input:
        data=prepared,
        weights="results/init/{workload}.safetensors",
        image=IMAGE,
    output:
        table="results/split_size/{workload}.csv",
        picture=report(
            "results/split_size/{workload}.svg",
            caption="../report/split_size.rst",
            category="Studies",
            labels={"what": "micro-batches", "of": "{workload}"},
        ),
    log:
        "results/logs/split_size/{workload}.log",
    conda:
        environment("train")
    resources:
        **configured_resources("split_size"),
    params:
        config=CONFIG_JSON,
        image=IN_IMAGE,
    message:
        "Splitting the batches of {wildcards.workload}"
    shell:
        f"python {SCRIPTS}/split_size.py"
        " --config {params.config:q} --workload {wildcards.workload} {params.image}"
        " --data $(dirname {input.data[0]}) --weights {input.weights} --output {output.table} > {log} 2>&1"
