"""Whether strategy, model and recipe fit together. Pure Python, no torch.

Each function raises Unsupported where a strategy makes no sense for a workload, and UserError where something else
does not fit; the sentence names the key and what would.
"""

from typing import Any

from shardlab.errors import Unsupported, UserError
from shardlab.settings.mesh import divisors
from shardlab.settings.recipe import Recipe
from shardlab.settings.types import SCHEDULES, Strategy, Workload


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
