# Checks of the site before long runs: the login node, each node, all ranks. Reports are temporary, so checks rerun.


localrules:
    resolve_site,
    preflight_login,
    preflight,


# The settings of the ranks that a call has, whatever they do.
rule resolve_site:
    output:
        "results/site.json",
    log:
        "results/logs/resolve_site.log",
    conda:
        environment("workflow")
    params:
        run=lambda wildcards: settings_json(CALL.ranks()),
    message:
        f"Resolving site {CONFIG.site}"
    shell:
        f"( {WRITE_SETTINGS} ) 2> {{log:q}}"


rule preflight_login:
    input:
        "results/site.json",
    output:
        temp("results/preflight/login.txt"),
    log:
        "results/logs/preflight/login.log",
    retries: 0
    conda:
        environment("workflow")
    params:
        config=CONFIG_JSON,
    message:
        "Looking at the login node"
    shell:
        f"{SHARDLAB} preflight_login"
        " --config {params.config:q} --settings {input:q} --output {output:q} > {log:q} 2>&1"


rule preflight_nodes:
    input:
        settings="results/site.json",
        login="results/preflight/login.txt",
        image=IMAGE,
    output:
        temp("results/preflight/nodes.txt"),
    log:
        "results/logs/preflight/nodes.log",
    retries: 0
    conda:
        environment("train")
    resources:
        **REQUESTS.of_the_configuration("preflight"),
    message:
        "Looking at the nodes"
    shell:
        launch("preflight_nodes --output {output:q}")


rule preflight_ranks:
    input:
        settings="results/site.json",
        nodes="results/preflight/nodes.txt",
        image=IMAGE,
    output:
        temp("results/preflight/ranks.txt"),
    log:
        "results/logs/preflight/ranks.log",
    retries: 0
    conda:
        environment("train")
    resources:
        **REQUESTS.of_the_configuration("preflight"),
    message:
        "Trying the collectives over all ranks"
    shell:
        launch("preflight_ranks --output {output:q}")


rule preflight:
    input:
        "results/preflight/login.txt",
        "results/preflight/nodes.txt",
        "results/preflight/ranks.txt",
    log:
        "results/logs/preflight/show.log",
    conda:
        environment("workflow")
    message:
        f"Looking at site {CONFIG.site} is complete"
    shell:
        "cat {input:q} | tee {log:q}"
