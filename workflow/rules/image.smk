# The image: wheels collected with the login node's pip settings, then Apptainer. Sites can also use an existing image.


localrules:
    wheelhouse,
    image,
    named_image,


rule wheelhouse:
    input:
        HERE / "envs/train.txt",
    output:
        "containers/wheelhouse/wheels.json",
    log:
        "results/logs/wheelhouse.log",
    conda:
        environment("workflow")
    params:
        base=SITE.container.base,
    message:
        "Collecting the wheels of {input}"
    shell:
        f"{SHARDLAB} wheelhouse"
        " --base {params.base:q} --lock {input:q} --output {output:q} > {log:q} 2>&1"


rule image:
    input:
        definition=HERE / "containers/train.def",
        script=HERE / "containers/install.sh",
        lock=HERE / "envs/train.txt",
        wheels="containers/wheelhouse/wheels.json",
    output:
        "containers/train.image.json",
    log:
        "results/logs/image.log",
    conda:
        environment("workflow")
    params:
        container=SITE.container.model_dump_json(
            include={"command", "base", "rocm_image", "mirror", "build_flags"}
        ),
        variables=SITE.environment_clear,
        wheels=subpath(input.wheels, parent=True),
    message:
        "Building the image containers/train.sif, which takes minutes"
    shell:
        f"{SHARDLAB} image"
        " --container {params.container:q} --definition {input.definition:q}"
        " --lock {input.lock:q} --wheels {params.wheels:q} --clear {params.variables:q}"
        " --output {output:q} > {log:q} 2>&1"


rule named_image:
    output:
        "containers/named.image.json",
    log:
        "results/logs/named_image.log",
    conda:
        environment("workflow")
    params:
        # A function, as Snakemake would take the braces of srun_options for wildcards.
        container=lambda _: SITE.container.model_dump_json(
            include={"command", "image", "image_is", "srun_options"}
        ),
    message:
        "Reading the image that the site names"
    shell:
        f"{SHARDLAB} image"
        " --container {params.container:q} --output {output:q} > {log:q} 2>&1"
