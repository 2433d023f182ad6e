# Latency and bandwidth of the collectives over the ranks of the configuration (nodes, ranks_per_node).
rule collectives:
    input:
        settings="results/site.json",
        image=IMAGE,
    output:
        f"results/collectives/{CONFIG.site}.csv",
    log:
        f"results/logs/collectives/{CONFIG.site}.log",
    conda:
        environment("train")
    resources:
        **REQUESTS.of_the_configuration("collectives"),
    params:
        image=in_image,
    message:
        f"Measuring the collectives at site {CONFIG.site}"
    shell:
        f"{SHARDLAB} launch"
        " collectives --settings {input.settings:q} {params.image:q}"
        " --output {output:q} > {log:q} 2>&1"
