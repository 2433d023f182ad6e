"""From config to run: multiply the degrees out, check everything, before anything is submitted."""

from shardlab.errors import Unsupported, UserError, choices
from shardlab.schema import check
from shardlab.settings import (
    code_fingerprint,
    compatibility,
    deepspeed,
    load,
    model_and_data,
    pretrained,
    variants,
)
from shardlab.settings.config import Config
from shardlab.settings.mesh import AXES, ParallelDims, multiply_out
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.recipe import Optimizer, Recipe
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import Ranks, Run, Size, Strategy, StrategyOptions, Workload


def run(
    config: Config,
    strategy_name: str,
    workload_name: str,
    *,
    strategy: Strategy | None = None,
    workload: Workload | None = None,
) -> Run:
    """Return the complete settings of one run.

    ``strategy``, ``workload``: these instead of the ones that the names have in ``config/``.

    Raises:
        Unsupported: the strategy does not apply to this workload.
        UserError: settings do not fit together; the message names the key and what would work.
    """
    strategy = strategy or load.variant_of_strategy(strategy_name)
    workload_base, values = variants.parse_side(workload_name, "workload")
    # The data keep the configuration's seed: variants differ in weights and order, but not in their test split.
    data_seed = config.seed
    config = variants.override_config(config, variants.parse(strategy_name)[1] | values)
    workload = workload or load.workload(workload_base)
    site = load.site(config).place()
    size = model_and_data.size_of(workload, config, workload_base)
    recipe = _recipe(size, config, values)
    model_and_data.check_files(workload, config, workload_base)
    data = model_and_data.data_of(workload, config, size, data_seed, varied=values.get("size", ""))
    args = model_and_data.model_args(workload, config, size)
    model_and_data.check_args(workload, workload_base, args, data.options)
    nodes, ranks, devices = _ranks(config, strategy, strategy_name, site)
    mesh = _mesh(strategy, strategy_name, nodes, ranks)
    where = f"config/workloads/{workload_base}.yaml: segments"
    segments = sum(
        each if isinstance(each, int) else compatibility.number_of(args, each, where) for each in workload.segments
    )
    if strategy.script:
        compatibility.check_script(strategy, strategy_name, workload_base, recipe)
    else:
        compatibility.check_tensor(strategy, mesh, workload, workload_base, args, ranks)
        compatibility.check_context(strategy, mesh, workload, workload_base, args, data.options)
        compatibility.check_experts(mesh, workload, workload_base, args)
        compatibility.check_pipeline(strategy, strategy_name, mesh, workload_base, segments, devices, entry=workload)
    if recipe.global_batch_size < mesh.data_size:
        raise UserError(
            f"{strategy_name} x {workload_name}: global_batch_size {recipe.global_batch_size} has fewer samples than "
            f"the {mesh.data_size} data-parallel ranks; lower nodes or ranks_per_node, or set "
            f"recipe.global_batch_size to {mesh.data_size} or more."
        )
    if recipe.gradient_accumulation_steps > (samples := -(-recipe.global_batch_size // mesh.data_size)):
        raise UserError(
            f"{strategy_name} x {workload_name}: recipe.gradient_accumulation_steps "
            f"{recipe.gradient_accumulation_steps} leaves micro-batches without samples, as each rank has at most "
            f"{samples} of a step; set it to {samples} or less."
        )
    if not strategy.script:
        compatibility.check_recipe(strategy, strategy_name, recipe, site.device)
    resolved = Run(
        strategy=strategy_name,
        workload=workload_name,
        size=config.size,
        seed=config.seed,
        nodes=nodes,
        ranks_per_node=ranks,
        mesh=mesh,
        engine=strategy.engine,
        engine_config=deepspeed.settings(strategy, strategy_name, recipe, mesh.data_size),
        options=StrategyOptions.model_validate(strategy.model_dump(include=set(StrategyOptions.model_fields))),
        devices_per_rank=devices,
        task=workload.task,
        model=model_and_data.model_of(workload, workload_base, args, segments, recipe),
        data=data,
        recipe=recipe,
        script=strategy.script,
        site=site,
        site_name=config.site,
    )
    return resolved.model_copy(update={"sources": code_fingerprint.training_sources(resolved)})


def ranks(config: Config) -> Ranks:
    """Return the settings of the configuration's ranks, whatever they do.

    Raises:
        UserError: the site does not have as many.
    """
    site = load.site(config).place()
    _check_size(config, f"site {config.site}", config.ranks_per_node, site)
    size = config.nodes * config.ranks_per_node
    return Ranks(
        nodes=config.nodes,
        ranks_per_node=config.ranks_per_node,
        mesh=ParallelDims({"dp_replicate": size} if size > 1 else {}),
        site=site,
        site_name=config.site,
    )


OF_STEPS = (
    *("lr_schedule", "epochs", "max_steps", "max_grad_norm", "ema_decay", "keep_best"),
    *("checkpoint_interval_steps", "checkpoint_interval_minutes", "keep_last_checkpoints"),
)
"""Keys of a recipe of which nothing is needed to draw, evaluate or look at a model."""


def initialization(single: Run) -> Run:
    """Return the settings of the job that draws a workload's initial weights, from those of its ``single``.

    They leave out the code of the strategies, all of which start from these weights, and what a recipe says of steps:
    another call's recipe would draw the weights again, and so train finished runs.
    """
    sources = {path: digest for path, digest in single.sources.items() if path != "scripts/shardlab/parallel"}
    usual = Recipe(optimizer=Optimizer(name=single.recipe.optimizer.name))
    recipe = single.recipe.model_copy(update={key: getattr(usual, key) for key in ("optimizer", *OF_STEPS)})
    return single.model_copy(update={"sources": sources, "recipe": recipe})


def weights_of(workload_name: str) -> str:
    """Return the variant of a workload whose initial weights a variant starts from."""
    base, values = variants.parse_side(workload_name, "workload")
    return variants.named(base, {key: value for key, value in values.items() if key in variants.WEIGHTS})


def names(config: Config) -> list[tuple[str, str]]:
    """Return (strategy, workload) of all runs of a configuration, including variants, in the order of its lists."""
    points = list(variants.points(config))
    return list(
        dict.fromkeys(
            (_varied(strategy, ours), _with(workload, other))
            for strategy in config.strategies
            for workload in config.workloads
            for ours, other in points
        )
    )


def _varied(strategy: str, values: variants.Values) -> str:
    """Return the variant of a strategy, without the keys that do not affect it."""
    settings = load.strategy(variants.base(strategy))
    return _with(strategy, {key: value for key, value in values.items() if variants.takes(settings, key)})


def _with(name: str, values: variants.Values) -> str:
    """Return a variant of a strategy or workload that may be one already."""
    base, own = variants.parse(name)
    return variants.named(base, own | values)


def check_proven(run: Run) -> None:
    """Check that no proof at tiny sizes was made that refuses a run; one that was not made yet refuses nothing.

    Raises:
        Unsupported: one was.
    """
    if run.model.folder and (why := pretrained.refusals(run, weights_of(run.workload)).get(run.strategy)):
        raise Unsupported(f"{run.strategy} x {run.workload}: {why}")


def matrix(config: Config) -> tuple[list[Run], dict[tuple[str, str], str]]:
    """Return all runs of a configuration, and the reason for each (strategy, workload) that is left out.

    Raises:
        UserError: one of them is a mistake, or no variant of a sweep is possible.
    """
    runs: list[Run] = []
    left_out: dict[tuple[str, str], str] = {}
    for strategy, workload in names(config):
        try:
            one = run(config, strategy, workload)
            check_proven(one)
            runs.append(one)
        except UserError as reason:
            if not isinstance(reason, Unsupported) and variants.base(strategy) == strategy:
                raise
            left_out[strategy, workload] = str(reason).removeprefix(f"{strategy} x {workload}: ")
    if config.sweep and not runs:
        raise UserError(f"{variants.SWEEP}: no variant is possible: {next(iter(left_out.values()))}")
    for one in {(variants.base(one.workload), one.data.name): one for one in runs}.values():
        model_and_data.check_shared(config, one)
    return runs, left_out


def twinned(config: Config, runs: list[Run]) -> list[str]:
    """Return the workloads whose rounding noise is measured.

    Not those in float64, nor those that ranks evaluate together. None in a sweep, which looks for the best variant: it
    costs several times the sweep's runs.
    """
    if config.sweep:
        return []
    return [
        run.workload
        for run in runs
        if run.strategy == "single"
        and config.noise_floor_runs
        and run.recipe.arithmetic != "float64"
        and PRECISIONS[run.recipe.arithmetic].rounding
        and not run.evaluated_sharded
    ]


def compared(config: Config, runs: list[Run]) -> list[Run]:
    """Return the runs whose final weights are compared with those of ``single``. None in a sweep, like twins."""
    if config.sweep:
        return []
    singles = {run.workload for run in runs if run.strategy == "single"}
    return [run for run in runs if run.strategy != "single" and run.workload in singles]


def _recipe(size: Size, config: Config, values: variants.Values) -> Recipe:
    over = load.merged(config.recipe, {"dtype": config.dtype} if config.dtype else {})
    over = load.merged(over, variants.over(values, "recipe"))
    return check(Recipe, load.merged(size.recipe.model_dump(exclude_unset=True), over), "config: recipe")


def _ranks(config: Config, strategy: Strategy, name: str, site: SiteRuntime) -> tuple[int, int, int]:
    """Return the nodes, the ranks per node and the devices per rank."""
    distributed = strategy.engine == "deepspeed" or bool(strategy.degrees)
    if not distributed and strategy.single_process is None:
        return 1, 1, 1
    ranks = max(config.ranks_per_node, -(-strategy.min_ranks // config.nodes))
    _check_size(config, name, ranks, site)
    return (config.nodes, ranks, 1) if distributed else (1, 1, ranks)


def _check_size(config: Config, name: str, ranks: int, site: SiteRuntime) -> None:
    """Check that the site has the configuration's nodes, and ``ranks`` on each."""
    if site.nodes_max and config.nodes > site.nodes_max:
        raise UserError(
            f"{name}: {config.nodes} nodes are requested, but a run at site {config.site} can have at most "
            f"{site.nodes_max}; set nodes to at most {site.nodes_max}, or choose another site."
        )
    if config.nodes > 1 and site.srun is None:
        raise UserError(
            f"{name}: {config.nodes} nodes are requested, but site {config.site} has no `srun:`, which starts ranks on "
            "several; set nodes to 1, or add srun to the site's file."
        )
    if site.ranks_per_node_max and ranks > site.ranks_per_node_max:
        raise UserError(
            f"{name}: {ranks} ranks per node are requested, but a node of site {config.site} has "
            f"{site.ranks_per_node_max}; set ranks_per_node to at most {site.ranks_per_node_max}."
        )


def _mesh(strategy: Strategy, name: str, nodes: int, ranks: int) -> ParallelDims:
    """Return the strategy's degrees, completed to the world size."""
    where = f"config/strategies.yaml: {name}"
    if strategy.workloads and not strategy.script:
        raise UserError(f"{where}: workloads are those that a script knows; set script, or remove workloads.")
    if strategy.script:
        if own := strategy.model_fields_set - {"script", "min_ranks", "workloads", *AXES}:
            raise UserError(
                f"{where}: only this project's own training reads {choices(own)}; remove that, as a script decides "
                f"everything but its number of ranks (known with script: min_ranks, workloads, "
                f"{', '.join(AXES)})."
            )
        code_fingerprint.check_script(strategy.script, where)
        return multiply_out(strategy.degrees, nodes, ranks, where)
    if strategy.engine == "deepspeed":
        own = strategy.model_fields_set - {"engine", "config", "min_ranks"}
        if own or strategy.config is None:
            wrong = f"remove {choices(own)}" if own else "add it"
            raise UserError(f"{where}: engine deepspeed takes `config` (a JSON file) and no key of PyTorch; {wrong}.")
        return multiply_out({"dp_shard": -1}, nodes, ranks, where)
    if strategy.config is not None:
        raise UserError(f"{where}: `config` belongs to engine deepspeed; remove it or set the engine.")
    compatibility.check_degrees(strategy, where)
    return multiply_out(strategy.degrees, nodes, ranks, where)
