# Test loss and metric on one device, with the same code for every strategy; or, if the recipe says so, under the run's
# own strategy.


rule evaluate:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=prepared,
        done="results/{strategy}/{workload}.done",
        initial=initial("results/init/{}.json"),
        image=IMAGE,
    output:
        "results/{strategy}/{workload}/test.json",
    log:
        "results/{strategy}/{workload}/logs/evaluate.log",
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
        "python {SCRIPTS:q}/launch.py"
        ' evaluate --settings {input.settings:q} {params.image:q} --data "$(dirname {input.data[0]:q})"'
        " --weights results/{wildcards.strategy:q}/{wildcards.workload:q}/model.safetensors"
        " --initial {input.initial:q} --output {output:q}"
        " > {log:q} 2>&1"
