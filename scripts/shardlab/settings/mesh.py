"""Ranks and mesh axes of a run: the degrees multiplied out. Pure Python, no torch."""

from math import prod

from shardlab.errors import UserError, choices
from shardlab.settings.sites import SiteRuntime
from shardlab.settings.types import AXES, Config, Strategy


def ranks_of(config: Config, strategy: Strategy, name: str, site: SiteRuntime) -> tuple[int, int, int]:
    """Nodes, ranks on each, devices that each rank drives."""
    spread = strategy.engine == "deepspeed" or any(getattr(strategy, axis) is not None for axis in AXES)
    if not spread and strategy.one_process is None:
        return 1, 1, 1
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
    return (config.nodes, ranks, 1) if spread else (1, 1, ranks)


def mesh_of(strategy: Strategy, name: str, nodes: int, ranks: int) -> dict[str, int]:
    """Mesh axes with their degrees multiplied out to the world size."""
    degrees = {axis: getattr(strategy, axis) for axis in AXES if getattr(strategy, axis) is not None}
    world = nodes * ranks
    where = f"config/strategies.yaml: {name}"
    if strategy.engine == "deepspeed":
        own = strategy.model_fields_set - {"engine", "config", "min_ranks"}
        if own or strategy.config is None:
            raise UserError(f"{where}: engine deepspeed takes `config` (a JSON file) and none of PyTorch's own keys.")
        return {"dp_shard": world}
    if strategy.config is not None:
        raise UserError(f"{where}: `config` belongs to engine deepspeed; remove it or set the engine.")
    if strategy.cpu_offload and "dp_shard" not in degrees:
        raise UserError(f"{where}: cpu_offload needs dp_shard; set dp_shard to -1 or remove cpu_offload.")
    if strategy.one_process and degrees:
        raise UserError(f"{where}: one_process is one rank and takes no degrees; remove {choices(degrees)}.")
    if "dp_replicate" in degrees and degrees.keys() & {"pp", "tp"} and "dp_shard" not in degrees:
        # DDP does not take the DTensors of tensor parallelism, nor a backward pass that a pipeline has taken apart;
        # HSDP with one shard does the same.
        raise UserError(f"{where}: dp_replicate with pp or tp needs dp_shard, too; add dp_shard: 1.")
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


def divisors(number: int) -> str:
    """All divisors, as text."""
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
