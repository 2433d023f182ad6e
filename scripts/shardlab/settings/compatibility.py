"""Checks that strategy, model and recipe fit together.

Each function raises Unsupported if a strategy does not apply to a workload, and UserError for any other mismatch; the
message names the key and what would work.
"""

import math
from typing import Any

from shardlab.errors import Unsupported, UserError, choices
from shardlab.settings import pretrained
from shardlab.settings.mesh import AXES, ParallelDims, divisors, divisors_of
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.recipe import Recipe
from shardlab.settings.types import CAUSAL, Strategy, Workload
from shardlab.settings.variants import ALONE, NEEDS

TWO_STACKS = "two stacks of layers (an encoder and a decoder)"


def check_degrees(strategy: Strategy, where: str) -> None:
    """Check that the strategy's axes can be combined, and that its options have an effect."""
    degrees, splits = strategy.degrees, strategy.splits
    for key, split in NEEDS.items():
        if split not in splits and getattr(strategy, key) != Strategy.model_fields[key].default:
            axes = " or ".join(axis for axis, each in AXES.items() if split in each.splits)
            raise UserError(f"{where}: {key} needs {axes}; add it, or remove {key}.")
    if strategy.single_process and degrees:
        raise UserError(f"{where}: single_process runs on one rank and takes no degrees; remove {choices(degrees)}.")
    for key, possible in ALONE.items():
        if splits - possible and getattr(strategy, key) != Strategy.model_fields[key].default:
            fitting = " and ".join(axis for axis, each in AXES.items() if each.splits and {*each.splits} <= possible)
            raise UserError(f"{where}: {key} works with {fitting} alone; remove it, or the other degrees.")
    if "experts" in splits and "states" not in splits:
        raise UserError(f"{where}: ep also needs dp_shard; add dp_shard: 1 to replicate everything but the experts.")
    if "samples" in splits and "states" not in splits and splits - {"samples"}:
        # DDP does not support the DTensors of tensor parallelism, nor the split backward pass of pipelines;
        # HSDP with one shard does the same.
        raise UserError(f"{where}: dp_replicate with pp or tp also needs dp_shard; add dp_shard: 1.")


def check_tensor(
    strategy: Strategy, mesh: ParallelDims, workload: Workload, name: str, args: dict[str, Any], ranks: int
) -> None:
    """Check that the model can be split as the strategy requires, and within a node."""
    if not mesh.tensor_parallel:
        return
    parts = mesh.tensor_parts
    hf = workload.model.startswith("hf:")  # models/contents.py checks these once the library is there
    if not workload.tensor and not hf:
        raise Unsupported(
            f"{name} has no tensor-parallel plan; write one under `tensor:` in config/workloads/{name}.yaml."
        )
    if strategy.sequence_parallel and not hf and "norm" not in workload.tensor.values():
        raise Unsupported(f"{name} has no `norm` in its tensor-parallel plan, so there is no sequence to split.")
    if strategy.loss_parallel and not hf and "column_gather" not in workload.tensor.values():
        raise Unsupported(f"{name} has no `column_gather` in its tensor-parallel plan, so no split logits.")
    if ranks % parts:
        raise UserError(
            f"tp {parts} does not divide the {ranks} ranks of a node, and tensor-parallel groups stay within "
            f"a node; tp can be {divisors(ranks)}."
        )
    sizes = {key: number_of(args, key, f"config/workloads/{name}.yaml: tensor_sizes") for key in workload.tensor_sizes}
    common = math.gcd(*sizes.values())
    if common % parts:
        key = next(key for key, size in sizes.items() if size % parts)
        raise Unsupported(
            f"tp {parts} does not divide {key} {sizes[key]} of workload {name}; tp can be {divisors(common)}."
        )


def number_of(args: dict[str, Any], key: str, where: str) -> int:
    """Return a model argument that a workload's file names as a number.

    Raises:
        UserError: it is none.
    """
    value = args.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        known = choices(key for key, value in args.items() if isinstance(value, int))
        raise UserError(f"{where}: {key} is not a numeric model argument; known: {known}.")
    return value


def check_context(
    strategy: Strategy, mesh: ParallelDims, workload: Workload, name: str, args: dict[str, Any], data: dict[str, Any]
) -> None:
    """Check that the model's sequences, and for Ulysses its heads, can be split."""
    cp, tp = mesh.parts("sequence"), mesh.tensor_parts
    if not mesh.axes("sequence"):
        return
    if workload.is_two_stacks:
        raise Unsupported(f"{name} has {TWO_STACKS}, of which each attends to whole sequences; leave out cp.")
    if workload.is_declared and workload.task not in CAUSAL:
        raise Unsupported(f"{name} has pictures, of which each is one short sequence; cp splits text; leave out cp.")
    if workload.context_sizes is None and not workload.is_declared:
        raise Unsupported(
            f"workload {name} does not support cp; if its model attends through models/_layers.py and its task names "
            f"its `sequences`, set `context_sizes:` in config/workloads/{name}.yaml."
        )
    pieces = cp * (2 if strategy.splits_head_and_tail and cp > 1 else 1)
    for key in ["sequence_length"] if workload.context_sizes is None else workload.context_sizes:
        if data[key] % pieces:
            raise Unsupported(
                f"{key} {data[key]} of workload {name} cannot be split into {pieces} pieces, "
                f"{pieces // cp} for each of cp {cp}; make it a multiple of {pieces}."
            )
    if strategy.context == "ulysses" and not workload.is_declared and args["heads"] % (cp * tp):
        raise Unsupported(
            f"context: ulysses splits heads, but cp {cp} x tp {tp} does not divide heads {args['heads']} of workload "
            f"{name}; cp x tp can be {divisors(args['heads'])}, or set context to gather or ring."
        )


def check_experts(mesh: ParallelDims, workload: Workload, name: str, args: dict[str, Any]) -> None:
    """Check that the model's experts can be split over the ranks of ep, and further over the other data ranks."""
    if not mesh.axes("experts"):
        return
    ep, shards, replicas = mesh.parts("experts"), mesh.shards, mesh.replicas
    if not workload.experts and not workload.is_declared:
        raise Unsupported(
            f"workload {name} has no experts for ep to split; if its model has a mixture of experts, name its modules "
            f"under `experts:` in config/workloads/{name}.yaml."
        )
    if workload.is_declared and not pretrained.names_experts(workload.model):
        raise Unsupported(f"the config.json of {workload.model} names no experts that ep could split.")
    possible = {*divisors_of(shards), *(shards * degree for degree in divisors_of(replicas))}
    if ep not in possible:
        raise Unsupported(
            f"ep {ep} does not divide the {shards * replicas} data-parallel ranks ({shards} with different shards); ep "
            f"can be {', '.join(map(str, sorted(possible)))}."
        )
    for key in workload.experts.values():
        if args[key] % ep:
            raise Unsupported(
                f"ep {ep} does not divide {key} {args[key]} of workload {name}; ep can be {divisors(args[key])}."
            )
        parts, hidden = mesh.expert_shards, math.gcd(args["hidden"] // mesh.tensor_parts, args["dim"])
        if args[key] // ep % parts and hidden % parts:
            raise Unsupported(
                f"with ep {ep} a rank has {args[key] // ep} experts of workload {name}, and the {parts} ranks with the "
                "same ones divide neither their number nor hidden and dim; use another number of ranks or another ep."
            )


def check_pipeline(
    strategy: Strategy,
    name: str,
    mesh: ParallelDims,
    workload: str,
    segments: int,
    devices: int,
    *,
    entry: Workload,
) -> None:
    """Check that the model can be split into the stages, and that the schedule supports the number of micro-batches.

    ``entry``: the workload. What the library declares is known once the model is built (models/contents.py checks it).
    """
    if not mesh.pipelined and strategy.single_process != "mp":
        return
    schedule = strategy.pipeline
    stages = mesh.stages * schedule.stages_per_rank if mesh.pipelined else devices
    if entry.is_two_stacks:
        raise Unsupported(f"{workload} has {TWO_STACKS}, which are no chain of stages; leave out pp and mp.")
    if not segments and not entry.is_declared:
        raise Unsupported(
            f"{workload} cannot be split into pipeline stages; make its model a chain of segments and set "
            f"`segments:` in config/workloads/{workload}.yaml."
        )
    if stages > segments and not entry.is_declared:
        raise Unsupported(
            f"{workload} can be split into {segments} segments, and {name} needs {stages}; use fewer "
            "ranks, or more layers."
        )
    if not mesh.pipelined:
        return
    if strategy.sequence_parallel:
        raise Unsupported(f"{name}: sequence_parallel does not work across pipeline stages; remove one of them.")
    if refusal := schedule.refusal(strategy.pipeline_schedule, mesh.stages, strategy.n_microbatches):
        raise UserError(f"{name}: {refusal}.")


def check_script(strategy: Strategy, name: str, workload: str, recipe: Recipe) -> None:
    """Check that a strategy's script can train the workload."""
    if strategy.workloads and workload not in strategy.workloads:
        raise Unsupported(
            f"{strategy.script} trains only {choices(strategy.workloads)}; teach it {workload}, and add that to "
            f"workloads of {name} in config/strategies.yaml."
        )
    if recipe.evaluation == "sharded":
        raise Unsupported(
            f"{name} cannot evaluate sharded, as only its script knows how it divides the model; set recipe.evaluation "
            "to whole."
        )
    if recipe.ema_decay is not None:
        raise Unsupported(f"{name} leaves no average of its weights, as a script; set recipe.ema_decay to null.")


def check_recipe(strategy: Strategy, name: str, recipe: Recipe, device: str) -> None:
    """Check that the strategy supports the recipe's settings."""
    for key, precision, instead in (("dtype", recipe.dtype, "float32"), ("precision", recipe.arithmetic, "bf16")):
        for part in (strategy.engine, device):
            if reason := PRECISIONS[precision].unsupported.get(part):
                raise Unsupported(f"{name} cannot train in {precision}: {reason}; set recipe.{key} to {instead}.")
    if strategy.engine == "deepspeed" and recipe.optimizer.name == "muon":
        raise Unsupported(
            f"{name}: DeepSpeed updates flat parts of all parameters, and muon needs whole matrices; leave out "
            "DeepSpeed."
        )
    if recipe.compile != "none" and strategy.single_process == "dp":
        raise Unsupported(f"{name}: DataParallel does not support torch.compile; set recipe.compile to none.")
    if strategy.pipeline.splits_backward and (recipe.compile != "none" or recipe.activation_checkpointing != "none"):
        raise Unsupported(
            f"{name}: {strategy.pipeline_schedule} splits the backward pass, which neither torch.compile nor "
            "activation checkpointing support; choose another schedule."
        )
