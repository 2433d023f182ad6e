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
    message:
        f"Measuring the collectives at site {CONFIG.site}"
    shell:
        launch("collectives --output {output:q}")
