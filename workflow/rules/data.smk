# Data, from the hub or embedded, to arrays. On the login node; after `prepare` no network is needed.


localrules:
    download,
    download_model,
    prepare,
    prefetch,


rule download:
    output:
        "data/raw/{dataset}/download.json",
    log:
        "results/logs/download/{dataset}.log",
    conda:
        environment("workflow")
    params:
        data=lambda wildcards: sorted_json(CALL.download_of(wildcards.dataset)),
        folder=subpath(output[0], parent=True),
    message:
        "Downloading data set {wildcards.dataset}"
    shell:
        f"{SHARDLAB} download"
        " --data {params.data:q} --output {params.folder:q} > {log:q} 2>&1"


rule download_model:
    output:
        "data/models/{model}/download.json",
    log:
        "results/logs/download_model/{model}.log",
    conda:
        environment("workflow")
    params:
        model=lambda wildcards: sorted_json(CALL.model(wildcards.model)),
        folder=subpath(output[0], parent=True),
    message:
        "Downloading model {wildcards.model}"
    shell:
        f"{SHARDLAB} download"
        " --model {params.model:q} --output {params.folder:q} > {log:q} 2>&1"


rule prepare:
    input:
        FILES.downloads_of_data_set,
    output:
        manifest="data/prepared/{dataset}/dataset.json",
        splits=expand(
            "data/prepared/{{dataset}}/{split}.safetensors",
            split=["train", "validation", "test"],
        ),
    log:
        "results/logs/prepare/{dataset}.log",
    conda:
        environment("workflow")
    params:
        data=lambda wildcards: sorted_json(CALL.data_set(wildcards.dataset)),
        folder=subpath(output.manifest, parent=True),
    message:
        "Preparing data set {wildcards.dataset}"
    shell:
        f"{SHARDLAB} prepare"
        " --data {params.data:q} --raw data/raw/{wildcards.dataset:q}"
        " --output {params.folder:q} > {log:q} 2>&1"


# Everything that needs a network; jobs inside an allocation, and a copy of this folder, find it there.
rule prefetch:
    input:
        FILES.every_data_set(),
        FILES.every_model(),
        IMAGE,
    message:
        "Data sets, models and the image are here"
