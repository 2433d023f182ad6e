"""From config to run: multiply the degrees out, check everything, before anything is submitted.

The Snakefile imports this on a login node, so it is pure Python: no torch.
"""

from collections.abc import Iterator
from typing import Any

from shardlab.errors import Unsupported, UserError, choices, unknown
from shardlab.schema import check
from shardlab.settings import catalogue, compatibility, deepspeed, identity, load, pretrained, sources
from shardlab.settings.config import Config
from shardlab.settings.mesh import ParallelDims, divisors, multiply_out
from shardlab.settings.recipe import Recipe
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import (
    DataSet,
    DataSource,
    Model,
    Run,
    Size,
    Strategy,
    StrategyOptions,
    Workload,
)

SHARED = "init"
"""In place of a strategy: what all runs of a workload share, their initial weights and what follows from these."""


def run(config: Config, strategy_name: str, workload_name: str) -> Run:
    """The complete settings of one run.

    Raises:
        Unsupported: the strategy makes no sense for this workload.
        UserError: something does not fit; the sentence names the key and what would.
    """
    if strategy_name == SHARED:
        shared = run(config, "single", workload_name)
        sources_of_all = {path: value for path, value in shared.sources.items() if "/strategies/" not in path}
        return shared.model_copy(update={"strategy": SHARED, "sources": sources_of_all})
    strategy, workload = load.strategy(strategy_name), load.workload(workload_name)
    site = load.site(config).place()
    size = _size(workload, config, workload_name)
    recipe = _recipe(size, config)
    _check_files(workload, config, workload_name)
    data = _data(workload, config, size)
    args = _args(workload, config, size)
    _check_model(workload, workload_name, args)
    nodes, ranks, devices = _ranks(config, strategy, strategy_name, site)
    mesh = _mesh(strategy, strategy_name, nodes, ranks)
    compatibility.check_tensor(strategy, mesh, workload, workload_name, args, ranks)
    pieces = _pieces(workload, workload_name, args)
    compatibility.check_pipeline(strategy, strategy_name, mesh, workload_name, pieces, devices)
    if recipe.global_batch < mesh.data_size:
        raise UserError(
            f"{strategy_name} x {workload_name}: global_batch {recipe.global_batch} has fewer samples than the "
            f"{mesh.data_size} data-parallel ranks that share it; lower nodes or ranks_per_node, or set "
            f"recipe.global_batch to {mesh.data_size} or more."
        )
    compatibility.check_recipe(strategy, strategy_name, recipe, site.device, mesh)
    found = Run(
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
        model=_model(workload, workload_name, args, pieces),
        data=data,
        recipe=recipe,
        site=site,
        site_name=config.site,
    )
    return found.model_copy(update={"sources": sources.of_run(found)})


def matrix(config: Config) -> tuple[list[Run], dict[tuple[str, str], str]]:
    """All runs of a configuration, and for each (strategy, workload) that is left out its reason."""
    found: list[Run] = []
    left_out: dict[tuple[str, str], str] = {}
    for strategy in config.strategies:
        for workload in config.workloads:
            try:
                found.append(run(config, strategy, workload))
            except Unsupported as reason:
                left_out[strategy, workload] = str(reason)
    for one in {one.workload: one for one in found}.values():
        check_data_set(config, one)
    return found, left_out


def _pieces(workload: Workload, name: str, args: dict[str, Any]) -> int:
    """Pieces of the model's chain: numbers and model arguments, added up."""
    total = 0
    for piece in workload.pieces:
        count = args.get(piece) if isinstance(piece, str) else piece
        if not isinstance(count, int) or isinstance(count, bool):
            raise UserError(
                f"config/workloads/{name}.yaml: pieces: {piece} is no model argument that is a number; write a number "
                f"or one of {choices(key for key, value in args.items() if isinstance(value, int))}."
            )
        total += count
    return total


def twinned(config: Config, runs: list[Run]) -> list[str]:
    """Workloads whose `single` gets twins: those in float32, where rounding shows, that one device evaluates."""
    return [
        run.workload
        for run in runs
        if run.strategy == "single" and config.twins and run.recipe.dtype == "float32" and not run.evaluated_sharded
    ]


def _recipe(size: Size, config: Config) -> Recipe:
    over = load.merged(config.recipe, {"dtype": config.dtype} if config.dtype else {})
    return check(Recipe, load.merged(size.recipe.model_dump(exclude_unset=True), over), "config: recipe")


def _ranks(config: Config, strategy: Strategy, name: str, site: SiteRuntime) -> tuple[int, int, int]:
    """Nodes, ranks on each, devices that each rank drives."""
    distributed = strategy.engine == "deepspeed" or bool(strategy.degrees)
    if not distributed and strategy.one_process is None:
        return 1, 1, 1
    if site.nodes_max and config.nodes > site.nodes_max:
        raise UserError(
            f"{name}: {config.nodes} nodes are asked for, but a run at site {config.site} can have "
            f"{site.nodes_max}; set nodes to {site.nodes_max} or less, or choose another site."
        )
    if config.nodes > 1 and site.srun is None:
        raise UserError(
            f"{name}: {config.nodes} nodes are asked for, but site {config.site} has no `srun:`, which starts ranks on "
            "several; set nodes to 1, or add srun to the site's file."
        )
    ranks = max(config.ranks_per_node, -(-strategy.min_ranks // config.nodes))
    if site.ranks_per_node_max and ranks > site.ranks_per_node_max:
        raise UserError(
            f"{name}: {ranks} ranks per node are asked for, but a node of site {config.site} has "
            f"{site.ranks_per_node_max}; set ranks_per_node to {site.ranks_per_node_max} or less."
        )
    return (config.nodes, ranks, 1) if distributed else (1, 1, ranks)


def _mesh(strategy: Strategy, name: str, nodes: int, ranks: int) -> ParallelDims:
    """The strategy's degrees multiplied out to the world size."""
    where = f"config/strategies.yaml: {name}"
    if strategy.engine == "deepspeed":
        own = strategy.model_fields_set - {"engine", "config", "min_ranks"}
        if own or strategy.config is None:
            raise UserError(
                f"{where}: engine deepspeed takes `config` (a JSON file) and none of PyTorch's own keys; "
                "take these out."
            )
        return multiply_out({"dp_shard": -1}, nodes, ranks, where)
    if strategy.config is not None:
        raise UserError(f"{where}: `config` belongs to engine deepspeed; remove it or set the engine.")
    compatibility.check_degrees(strategy, where)
    return multiply_out(strategy.degrees, nodes, ranks, where)


def data_set(config: Config, name: str) -> DataSet:
    """Settings of a data set that some workload uses under this configuration.

    Raises:
        UserError: none does.
    """
    found: dict[str, DataSet] = {}
    for _, workload, size in _sized(config):
        data = _data(workload, config, size)
        found.setdefault(data.name, data)
    if name not in found:
        raise unknown("data set", name, found, "config")
    return found[name]


def model(config: Config, folder: str) -> Model:
    """Settings of the transformers model that a workload downloads to ``folder`` under this configuration.

    Raises:
        UserError: none does.
    """
    found: dict[str, Model] = {}
    for name, workload, size in _sized(config):
        if pretrained.is_pretrained(workload.model):
            asked = _model(workload, name, _args(workload, config, size), 0)
            found.setdefault(str(asked.folder), asked)
    if folder not in found:
        raise unknown("model", folder, found, "config")
    return found[folder]


def _sized(config: Config) -> Iterator[tuple[str, Workload, Size]]:
    """Every workload that has the configuration's size, its own ones first."""
    for name in (*config.workloads, *load.names("workloads")):
        try:
            workload = load.workload(name)
        except UserError:
            if name in config.workloads:
                raise
            continue  # half written, perhaps, and not asked for
        if config.size in workload.sizes:
            yield name, workload, workload.sizes[config.size]


def _args(workload: Workload, config: Config, size: Size) -> dict[str, Any]:
    """Arguments of the workload's model."""
    source = _source(workload, config)
    return size.model | source.model | size.shape | source.shape


def _size(workload: Workload, config: Config, name: str) -> Size:
    if config.size not in workload.sizes:
        raise unknown("size", config.size, workload.sizes, f"config: size, for workload {name}")
    return workload.sizes[config.size]


def _source(workload: Workload, config: Config) -> DataSource:
    """The source that the configuration names; a workload without one on the hub takes the embedded data."""
    if source := workload.data.get(config.data) or workload.data.get("embedded"):
        return source
    raise UserError(
        f"config: data is {config.data}, but a workload's `data:` has hub alone ({workload.data['hub'].name}); set "
        "data=hub, or add embedded to the workload's file."
    )


def _data(workload: Workload, config: Config, size: Size) -> DataSet:
    source = _source(workload, config)
    return DataSet(
        name=source.name,
        task=workload.task,
        seed=config.seed,
        options=size.data | size.shape | source.shape,
        reader=source.reader,
        tokenizer=pretrained.folder_of(workload.model) if workload.task in pretrained.TEXT_TASKS else None,
        hub=source.hub,
        sources=sources.of_data(source.reader, workload.task),
    )


def _model(workload: Workload, name: str, args: dict[str, Any], pieces: int) -> Model:
    theirs = pretrained.is_pretrained(workload.model)
    model = Model(
        name=workload.model,
        args=args,
        blocks=workload.blocks,
        tensor=dict(workload.tensor),
        pieces=pieces,
        sources=sources.of_model(workload.model, transformers=theirs),
    )
    if not theirs:
        return model
    return pretrained.settings(model, f"config/workloads/{name}.yaml")


def _check_files(workload: Workload, config: Config, name: str) -> None:
    """Whether the model, task and reader that a workload names are there."""
    asked = {"reader": _source(workload, config).reader, "task": workload.task}
    if not pretrained.is_pretrained(workload.model):
        asked["model"] = workload.model
    for kind, file in asked.items():
        catalogue.require(kind, file, f"config/workloads/{name}.yaml: {kind}")


def _check_model(workload: Workload, name: str, args: dict[str, Any]) -> None:
    for key, divisor in workload.divisible.items():
        sizes = [args.get(key), args.get(divisor)]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            continue  # the model itself says what is wrong
        if args[key] % args[divisor]:
            raise UserError(
                f"config/workloads/{name}.yaml: {divisor} {args[divisor]} does not divide {key} {args[key]}; "
                f"{divisor} can be {divisors(args[key])}."
            )


def check_data_set(config: Config, run: Run) -> None:
    """Two workloads may share a prepared data set only if they ask for the same one.

    Raises:
        UserError: another workload has the same name for another data set.
    """
    if (other := data_set(config, run.data.name)) != run.data:
        key = identity.difference(other.model_dump(mode="json"), run.data.model_dump(mode="json"))
        raise UserError(
            f"config/workloads/{run.workload}.yaml: another workload prepares a data set {run.data.name}, too, with "
            f"another {key}; give one of them another name under `data:`."
        )
