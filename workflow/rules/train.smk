# Training: frozen settings, one set of initial weights for all strategies, the ranks.


localrules:
    resolve,
    resolve_init,
    list_strategies,


rule resolve:
    input:
        # A failed download must not leave settings that differ from those of finished runs.
        ancient(FILES.downloads),
        # New proofs alone train nothing again.
        proofs=ancient(FILES.proofs),
    output:
        "results/{strategy}/{workload}/run.json",
    log:
        "results/{strategy}/{workload}/logs/resolve.log",
    conda:
        environment("workflow")
    params:
        # Triggers resolving again; all of run.json would take many lines in Snakemake's reasons.
        identity=CALL.identity_of,
        # As functions of the input these do not trigger resolving again.
        run=lambda wildcards, input: settings_json(CALL.planned(wildcards, input)[0]),
        note=lambda wildcards, input: CALL.planned(wildcards, input)[1],
    message:
        "Resolving {wildcards.strategy} x {wildcards.workload}"
    shell:
        f"printf %s {{params.note:q}} > {{log:q}}; ! grep -q ^error: {{log:q}} && {WRITE_SETTINGS}"


# The settings of the job that draws the initial weights: no strategy, one device.
rule resolve_init:
    input:
        ancient(FILES.downloads),
    output:
        "results/init/{workload}/run.json",
    log:
        "results/init/{workload}/logs/resolve.log",
    conda:
        environment("workflow")
    params:
        identity=CALL.identity_of,
        run=lambda wildcards, input: settings_json(CALL.run_of(wildcards)),
    message:
        "Resolving the initial weights of {wildcards.workload}"
    shell:
        f"( {WRITE_SETTINGS} ) 2> {{log:q}}"


# A job in Slurm knows the configuration, but not the targets of the call.
rule list_strategies:
    output:
        "results/init/{workload}/strategies.json",
    log:
        "results/init/{workload}/logs/list_strategies.log",
    conda:
        environment("workflow")
    params:
        # Strategies that are added later, and edited ones, are proven then.
        names=lambda wildcards: CALL.to_prove(wildcards.workload),
    message:
        "Listing the strategies that train {wildcards.workload}"
    shell:
        "printf %s {params.names:q} > {output:q} 2> {log:q}"


# Which strategies train a transformers model as one process does, tried on a tiny one. What is refused is in proofs.json
# next to the table, which Snakemake would delete if it were an output.
rule prove:
    input:
        settings="results/init/{workload}/run.json",
        strategies="results/init/{workload}/strategies.json",
        model=FILES.model,
        image=IMAGE,
    output:
        "results/init/{workload}/proofs.txt",
    log:
        "results/logs/prove/{workload}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_a_run("prove", like="init"),
    message:
        "Proving on a tiny model which strategies train {wildcards.workload} as one process does"
    shell:
        launch("prove --strategies {input.strategies:q} --output {output:q}")


# Initial weights, and their test loss before any training.
rule init:
    input:
        settings="results/init/{workload}/run.json",
        data=FILES.prepared,
        model=FILES.model_with_weights,
        proofs=ancient(FILES.proofs),
        image=IMAGE,
    output:
        weights="results/init/{workload}.safetensors",
        report="results/init/{workload}.json",
    log:
        "results/logs/init/{workload}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_a_run("init"),
    params:
        # As a function of the input it does not draw the weights again when the strategies change.
        strategies=lambda wildcards, input: CALL.strategies_of(
            wildcards.workload, input.proofs
        ),
    message:
        "Drawing and evaluating the initial weights of {wildcards.workload}"
    shell:
        launch(
            'init --data "$(dirname {input.data[0]:q})" --output {output.weights:q} --report {output.report:q} '
            "--strategies {params.strategies:q}"
        )


rule train:
    input:
        settings="results/{strategy}/{workload}/run.json",
        data=FILES.prepared,
        weights=FILES.initial_weights,
        image=IMAGE,
    output:
        # Weights, checkpoints and reports are not outputs: Snakemake would delete them.
        "results/{strategy}/{workload}.done",
    log:
        "results/{strategy}/{workload}/logs/train.log",
    conda:
        environment("train")
    threads: REQUESTS.threads("train")
    resources:
        **REQUESTS.of_a_run("train"),
    params:
        # As a function of the input it does not trigger retraining.
        options=lambda wildcards, input: CONFIG.train_options,
    message:
        "Training {wildcards.workload} under {wildcards.strategy}"
    shell:
        launch(
            'train --data "$(dirname {input.data[0]:q})" --weights {input.weights:q} '
            "--output results/{wildcards.strategy:q}/{wildcards.workload:q} --done {output:q} {params.options:q}"
        )


rule noise_floor:
    input:
        settings="results/single/{workload}/run.json",
        data=FILES.prepared,
        weights=FILES.initial_weights,
        single="results/single/{workload}.done",
        image=IMAGE,
    output:
        "results/noise_floor/{workload}.json",
    log:
        "results/logs/noise_floor/{workload}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_a_run("noise_floor"),
    params:
        draws=CONFIG.noise_floor_runs,
    message:
        "Training {params.draws} twins of single x {wildcards.workload}"
    shell:
        launch(
            'noise_floor --data "$(dirname {input.data[0]:q})" --weights {input.weights:q} '
            "--single results/single/{wildcards.workload:q}/model.safetensors --draws {params.draws:q} "
            "--output {output:q}"
        )
