"""From config to run: multiply the degrees out, check everything, before anything is submitted.

The Snakefile imports this on a login node, so it is pure Python: no torch.
"""

import json
from math import prod
from typing import Any

from shardlab import configs
from shardlab.errors import Unsupported, UserError, choices, unknown
from shardlab.schema import check
from shardlab.settings import (
    AXES,
    Config,
    DataSet,
    DataSource,
    Model,
    Recipe,
    Run,
    Size,
    Strategy,
    Workload,
)
from shardlab.sites import Exec, Place


def resolve(config: Config, strategy_name: str, workload_name: str) -> Run:
    """The complete settings of one run.

    Raises:
        Unsupported: the strategy makes no sense for this workload.
        UserError: something does not fit; the sentence names the key and what would.
    """
    strategy, workload = configs.load_strategy(strategy_name), configs.load_workload(workload_name)
    site = configs.load_site(config).place()
    size = _size(workload, config, workload_name)
    recipe = check(Recipe, size.recipe.model_dump(exclude_unset=True) | config.recipe, "config: recipe")
    data = _data(workload, config, size)
    source = _source(workload, config)
    args = size.model | source.model | size.shape | source.shape
    _check_model(workload, workload_name, args)
    nodes, ranks = _ranks(config, strategy, strategy_name, site)
    mesh = _mesh(strategy, strategy_name, nodes, ranks)
    _check_tensor(mesh, workload, workload_name, args, ranks)
    replicas = mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1)
    if recipe.global_batch < replicas:
        raise UserError(
            f"{strategy_name} x {workload_name}: global_batch {recipe.global_batch} has fewer samples than "
            f"the {replicas} data-parallel ranks that share it; set recipe.global_batch to {replicas} or more."
        )
    if strategy.engine == "deepspeed" and recipe.dtype == "float64":
        raise Unsupported(f"{strategy_name}: DeepSpeed has no float64; set recipe.dtype to float32.")
    return Run(
        strategy=strategy_name,
        workload=workload_name,
        size=config.size,
        seed=config.seed,
        nodes=nodes,
        ranks_per_node=ranks,
        mesh=mesh,
        engine=strategy.engine,
        engine_config=_deepspeed(strategy, strategy_name, recipe, replicas),
        cpu_offload=strategy.cpu_offload,
        task=workload.task,
        model=Model(name=workload.model, args=args, blocks=workload.blocks, tensor=dict(workload.tensor)),
        data=data,
        recipe=recipe,
        site=site,
        site_name=config.site,
    )


def config_of(config: Config, run: Run) -> Config:
    """The part of the configuration that ``run`` follows from: it resolves to the same run.

    What is left out (the other workloads, ranks that this run does not have) can change without this one.
    """
    place = config.site_settings.keys() & Place.model_fields.keys()
    settings = {key: config.site_settings[key] for key in sorted(place - {"container"})}
    inside = {
        key: value for key, value in config.site_settings.get("container", {}).items() if key in Exec.model_fields
    }
    return Config(
        site=run.site_name,
        site_settings=settings | ({"container": inside} if inside else {}),
        container=run.site.container is not None,
        data="hub" if run.data.hub else "embedded",
        size=run.size,
        nodes=run.nodes,
        ranks_per_node=run.ranks_per_node,
        seed=run.seed,
        recipe=config.recipe,
    )


def plan(config: Config) -> tuple[list[Run], dict[tuple[str, str], str]]:
    """All runs of a configuration, and for each (strategy, workload) that is left out its reason."""
    runs: list[Run] = []
    left_out: dict[tuple[str, str], str] = {}
    for strategy in config.strategies:
        for workload in config.workloads:
            try:
                runs.append(resolve(config, strategy, workload))
            except Unsupported as reason:
                left_out[strategy, workload] = str(reason)
    _check_data_sets(runs)
    return runs, left_out


def data_set(config: Config, name: str) -> DataSet:
    """Settings of a data set that some workload uses under this configuration.

    Raises:
        UserError: none does.
    """
    found: dict[str, DataSet] = {}
    for workload_name in (*config.workloads, *configs.names("workloads")):
        workload = configs.load_workload(workload_name)
        data = _data(workload, config, _size(workload, config, workload_name))
        found.setdefault(data.name, data)
    if name not in found:
        raise unknown("data set", name, found, "config")
    return found[name]


def _size(workload: Workload, config: Config, name: str) -> Size:
    if config.size not in workload.sizes:
        raise unknown("size", config.size, workload.sizes, f"config: size, for workload {name}")
    return workload.sizes[config.size]


def _source(workload: Workload, config: Config) -> DataSource:
    return workload.data.get(config.data) or workload.data["embedded"]


def _data(workload: Workload, config: Config, size: Size) -> DataSet:
    source = _source(workload, config)
    return DataSet(
        name=source.name,
        task=workload.task,
        seed=config.seed,
        options=size.data | size.shape | source.shape,
        reader=source.reader,
        hub=source.hub,
    )


def _check_model(workload: Workload, name: str, args: dict[str, Any]) -> None:
    for key, divisor in workload.divisible.items():
        if key in args and divisor in args and args[key] % args[divisor]:
            raise UserError(
                f"config/workloads/{name}.yaml: {divisor} {args[divisor]} does not divide {key} {args[key]}; "
                f"{divisor} can be {_divisors(args[key])}."
            )


def _ranks(config: Config, strategy: Strategy, name: str, site: Place) -> tuple[int, int]:
    if strategy.engine == "torch" and all(getattr(strategy, axis) is None for axis in AXES):
        return 1, 1
    if site.nodes_max and config.nodes > site.nodes_max:
        raise UserError(
            f"{name}: {config.nodes} nodes are asked for, but a run at site {config.site} can have "
            f"{site.nodes_max}; set nodes to {site.nodes_max} or less, or choose another site."
        )
    ranks = max(config.ranks_per_node, -(-strategy.min_ranks // config.nodes))
    if site.ranks_per_node_max and ranks > site.ranks_per_node_max:
        raise UserError(
            f"{name}: {ranks} ranks per node are asked for, but a node of site {config.site} has "
            f"{site.ranks_per_node_max}; set ranks_per_node to {site.ranks_per_node_max} or less."
        )
    return config.nodes, ranks


def _mesh(strategy: Strategy, name: str, nodes: int, ranks: int) -> dict[str, int]:
    """Mesh axes with their degrees multiplied out to the world size."""
    degrees = {axis: getattr(strategy, axis) for axis in AXES if getattr(strategy, axis) is not None}
    world = nodes * ranks
    where = f"config/strategies.yaml: {name}"
    if strategy.engine == "deepspeed":
        if degrees or strategy.cpu_offload or strategy.config is None:
            raise UserError(f"{where}: engine deepspeed takes `config` (a JSON file), no degrees and no cpu_offload.")
        return {"dp_shard": world}
    if strategy.config is not None:
        raise UserError(f"{where}: `config` belongs to engine deepspeed; remove it or set the engine.")
    if strategy.cpu_offload and "dp_shard" not in degrees:
        raise UserError(f"{where}: cpu_offload needs dp_shard; set dp_shard to -1 or remove cpu_offload.")
    if "dp_replicate" in degrees and "tp" in degrees and "dp_shard" not in degrees:
        # DDP does not take the DTensors of tensor parallelism; HSDP with one shard does the same.
        raise UserError(f"{where}: dp_replicate with tp needs dp_shard between them; add dp_shard: 1.")
    if any(degree != -1 and degree < 1 for degree in degrees.values()):
        raise UserError(f"{where}: a degree is a number from 1, or -1 for what is left; got {degrees}.")
    open_axes = [axis for axis, degree in degrees.items() if degree == -1]
    if len(open_axes) > 1:
        raise UserError(f"{where}: only one degree can be -1, not {choices(open_axes)}.")
    fixed = prod(degree for degree in degrees.values() if degree != -1)
    if world % fixed or (not open_axes and degrees and fixed != world):
        raise UserError(
            f"{where}: the degrees {degrees} do not divide the world of {world} ranks ({nodes} nodes x "
            f"{ranks}); make nodes x ranks_per_node a multiple of {fixed}, or lower a degree."
        )
    return {axis: world // fixed if degree == -1 else degree for axis, degree in degrees.items()}


def _check_tensor(mesh: dict[str, int], workload: Workload, name: str, args: dict[str, Any], ranks: int) -> None:
    tp = mesh.get("tp", 1)
    if "tp" not in mesh:
        return
    if not workload.tensor:
        raise Unsupported(
            f"{name} has no tensor-parallel plan; write one under `tensor:` in config/workloads/{name}.yaml."
        )
    if ranks % tp:
        raise UserError(
            f"tp {tp} does not divide the {ranks} ranks of a node, and tensor-parallel groups stay inside "
            f"a node; tp can be {_divisors(ranks)}."
        )
    for key in workload.tensor_sizes:
        if args[key] % tp:
            raise UserError(
                f"tp {tp} does not divide {key} {args[key]} of workload {name}; tp can be {_divisors(args[key])}."
            )


def _deepspeed(strategy: Strategy, name: str, recipe: Recipe, replicas: int) -> dict[str, Any] | None:
    """DeepSpeed's settings: the user's JSON, with what the recipe decides filled in."""
    if strategy.config is None:
        return None
    path = configs.ROOT / strategy.config
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = choices(str(p.relative_to(configs.ROOT)) for p in (configs.CONFIG / "deepspeed").glob("*.json"))
        raise UserError(f"config/strategies.yaml: {name}: there is no {strategy.config}; known: {known}.") from None
    except ValueError as error:
        raise UserError(f"{strategy.config} is not strict JSON ({error}); no comments, no trailing commas.") from None
    decided: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": -(-recipe.global_batch // replicas),
        "gradient_accumulation_steps": 1,
        "gradient_clipping": recipe.clip_norm or 0.0,
    }
    clash = [key for key in (*decided, "train_batch_size", "optimizer", "scheduler") if key in given]
    if clash:
        raise UserError(f"{strategy.config}: `{clash[0]}` comes from the workload's recipe; remove it there.")
    return {**given, **decided}


def _check_data_sets(runs: list[Run]) -> None:
    """Two workloads may share a prepared data set only if they ask for the same one."""
    seen: dict[str, Run] = {}
    for run in runs:
        other = seen.setdefault(run.data.name, run)
        if other.data != run.data:
            raise UserError(
                f"workloads {other.workload} and {run.workload} prepare data set {run.data.name} with different "
                "options; give one of them another data name."
            )


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
