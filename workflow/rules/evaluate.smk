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
        f"python {SCRIPTS}/launch.py"
        " evaluate --settings {input.settings} {params.image} --data $(dirname {input.data[0]})"
        " --weights results/{wildcards.strategy}/{wildcards.workload}/model.safetensors"
        " --initial {input.initial} --output {output}"
        " > {log} 2>&1"
