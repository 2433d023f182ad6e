"""How a run is spread: ranks, mesh, and whether strategy, model and recipe fit together. Pure Python, no torch.

Each function raises Unsupported where a strategy makes no sense for a workload, and UserError where something else
does not fit; the sentence names the key and what would.
"""

from math import prod
from typing import Any

from shardlab.errors import Unsupported, UserError, choices
from shardlab.recipe import Recipe
from shardlab.settings import AXES, SCHEDULES, Config, Strategy, Workload
from shardlab.sites import Place


def ranks(config: Config, strategy: Strategy, name: str, site: Place) -> tuple[int, int, int]:
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


def mesh(strategy: Strategy, name: str, nodes: int, ranks: int) -> dict[str, int]:
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


def check_tensor(
    strategy: Strategy, mesh: dict[str, int], workload: Workload, name: str, args: dict[str, Any], ranks: int
) -> None:
    """Whether the model can be split as the strategy wants, and inside a node."""
    tp = mesh.get("tp", 1)
    if "tp" not in mesh:
        if strategy.sequence_parallel or strategy.loss_parallel:
            raise UserError("config/strategies.yaml: sequence_parallel and loss_parallel need tp; set tp: 2.")
        return
    if not workload.tensor:
        raise Unsupported(
            f"{name} has no tensor-parallel plan; write one under `tensor:` in config/workloads/{name}.yaml."
        )
    if strategy.sequence_parallel and "norm" not in workload.tensor.values():
        raise Unsupported(f"{name} has no `norm` in its tensor-parallel plan, so no sequence to split.")
    if strategy.loss_parallel and "column_gather" not in workload.tensor.values():
        raise Unsupported(f"{name} has no `column_gather` in its tensor-parallel plan, so no logits to leave split.")
    if ranks % tp:
        raise UserError(
            f"tp {tp} does not divide the {ranks} ranks of a node, and tensor-parallel groups stay inside "
            f"a node; tp can be {divisors(ranks)}."
        )
    for key in workload.tensor_sizes:
        if args[key] % tp:
            raise UserError(
                f"tp {tp} does not divide {key} {args[key]} of workload {name}; tp can be {divisors(args[key])}."
            )


def check_pipeline(
    strategy: Strategy, name: str, mesh: dict[str, int], workload: str, pieces: int, devices: int
) -> None:
    """Whether the model can be cut into the stages, and whether the schedule takes so many micro-batches."""
    pp = mesh.get("pp", 1)
    stages = devices if strategy.one_process == "mp" else pp * SCHEDULES[strategy.schedule] if "pp" in mesh else 0
    if stages and not pieces:
        raise Unsupported(
            f"{workload} is no chain of pieces to cut between; make its model one and say `pieces:` in "
            f"config/workloads/{workload}.yaml."
        )
    if stages > pieces:
        raise Unsupported(f"{workload} can be cut into {pieces} pieces, and {name} needs {stages}.")
    if "pp" not in mesh:
        return
    if strategy.sequence_parallel:
        raise Unsupported(f"{name}: sequence_parallel does not go across pipeline stages; remove one of them.")
    count = strategy.microbatches
    if strategy.schedule != "GPipe" and count < stages // SCHEDULES[strategy.schedule]:
        raise UserError(
            f"{name}: schedule {strategy.schedule} needs {pp} microbatches or more; microbatches is {count}."
        )
    if strategy.schedule == "Interleaved1F1B" and count % max(1, count // pp):
        raise UserError(f"{name}: Interleaved1F1B needs a multiple of {pp} microbatches; microbatches is {count}.")


def check_recipe(strategy: Strategy, name: str, recipe: Recipe, device: str) -> None:
    """Whether the strategy allows for what the recipe asks."""
    if strategy.engine == "deepspeed" and recipe.dtype == "float64":
        raise Unsupported(f"{name}: DeepSpeed has no float64; set recipe.dtype to float32.")
    if strategy.engine != "deepspeed" and recipe.precision == "fp16":
        raise Unsupported(f"{name}: fp16 needs the loss scaling of DeepSpeed; set recipe.precision to bf16.")
    if recipe.compile != "none" and strategy.one_process == "dp":
        raise Unsupported(
            f"{name}: DataParallel does not go with torch.compile; use ddp, or set recipe.compile to none."
        )
    if recipe.precision == "fp16" and device == "cpu":
        raise Unsupported(f"{name}: DeepSpeed has no fp16 on CPUs; set recipe.precision to bf16.")
    if strategy.tp is not None and recipe.compile == "model":
        raise Unsupported(f"{name}: torch.compile cannot trace a split embedding; set recipe.compile to blocks.")
    if strategy.schedule == "ZBVZeroBubble" and (recipe.compile != "none" or recipe.activation_checkpointing != "none"):
        raise Unsupported(
            f"{name}: ZBVZeroBubble takes the backward pass apart, which neither torch.compile nor activation "
            "checkpointing allow; choose another schedule."
        )


def divisors(number: int) -> str:
    """All divisors, as text."""
    return ", ".join(str(d) for d in range(1, number + 1) if number % d == 0)
