"""Expected communication and memory of a strategy, from sizes and shapes alone, to compare with measurements.

Formulas: DDP 2 (n - 1) / n P and FSDP 3 (n - 1) / n P as in Rajbhandari et al., 2020 (arXiv:1910.02054, section 7),
adjusted for implementation details (padding, what is gathered once); tensor parallelism and sequence parallelism as in
Korthikanti et al., 2022 (arXiv:2205.05198, section 4); a pipeline sends each boundary's state and its gradient; context
parallelism: see ``_attention_traffic``, experts: see ``_exchanged``. All are bytes sent per rank, the mean over the
ranks, with ring algorithms (see traffic.fraction_sent).
"""

import math
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from shardlab.measure.traffic import fraction_sent
from shardlab.models import contents, matching
from shardlab.models._chain import Chain, stages_with
from shardlab.models._experts import Experts
from shardlab.models.declared import completed
from shardlab.parallel.ddp import BROADCAST
from shardlab.parallel.fsdp import shard_dimension
from shardlab.plan.simulate import Seen, attend_to_shapes, meta_model, record_call, states_after_stages
from shardlab.records.reports import TrainReport
from shardlab.runtime.tasks import MicroBatch, Task
from shardlab.settings.pipeline_schedules import boundaries
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run


def bytes_per_step(
    run: Run, task: Task, micro_batches: list[MicroBatch], expert_rows: Tensor | int = 0, part: int = 0
) -> float | None:
    """Return the bytes that a rank sends in a step on these micro-batches; None if no formula is known.

    ``expert_rows``: its tokens of the step per layer and expert; ``part``: its coordinate along ep. Formulas cover the
    degrees only: recomputation, compilation and low precision change the traffic.
    """
    recipe = run.recipe
    plain = recipe.activation_checkpointing == "none" and recipe.compile == "none" and recipe.precision == "full"
    plain = plain and recipe.loss_chunks == 1
    if not plain or run.options.loss_parallel or run.options.wrap_parameters:
        return None
    if run.model.folder and run.mesh.axes("tensors", "experts", "sequence"):  # around the library's modules
        return None
    if not run.mesh:
        return 0.0
    model = meta_model(run)
    run = completed(run, model)
    if run.zero_stage is not None:
        return _zero(run.zero_stage, run.world_size, model, recipe.gradient_accumulation_steps)
    total = replica_traffic(run, model, recipe.gradient_accumulation_steps)
    if run.mesh.axes("layers", "tensors", "sequence"):
        try:
            total += sum(_activations(run, task, model, micro) for micro in micro_batches)
        except (RuntimeError, NotImplementedError):  # the forward pass reads values, which shapes do not have
            return None
    if isinstance(expert_rows, Tensor):
        total += _exchanged(run, model, expert_rows, part)
    if run.mesh.axes("experts"):
        pieces = run.options.n_microbatches if run.mesh.pipelined else 1
        total += len(micro_batches) * pieces * _counts(run, model) / run.mesh.stages
    return total


def _exchanged(run: Run, model: nn.Module, rows: Tensor, part: int) -> float:
    """Return the bytes of tokens that a rank sends for its own tokens' experts on other ranks, as if it also sent what
    returns to it: there and back, forward and backward, as in the mean over the ranks.
    """
    elsewhere = rows.sum() - rows.chunk(run.mesh.parts("experts"), 1)[part].sum()
    dim, size = next((e.gate.shape[-1], e.gate.itemsize) for e in _experts(run, model))
    return 4.0 * int(elsewhere) * dim * size


def _counts(run: Run, model: nn.Module) -> float:
    """Return the bytes that announce the numbers of rows, one int32 per expert and layer."""
    return fraction_sent("all_to_all", run.mesh.parts("experts")) * sum(4 * e.experts for e in _experts(run, model))


def _experts(run: Run, model: nn.Module) -> list[Experts]:
    return [cast(Experts, module) for pattern in run.model.experts for module in matching(model, pattern)]


def _zero(stage: int, ranks: int, model: nn.Module, gradient_accumulation_steps: int) -> float:
    """ZeRO 1 and 2: gradients scattered, weights gathered; 3: weights gathered twice, gradients scattered.

    This is the paper's volume. DeepSpeed 0.19 sends 3/2 of it at stages 1 and 2, where it all-reduces gradients, and
    less at stage 3 if weights gathered for the forward pass are still there for the backward pass.
    """
    one = fraction_sent("all_gather", ranks)
    trained = one * sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    whole = one * sum(parameter.nbytes for parameter in model.parameters())
    return (2 * whole + trained) * gradient_accumulation_steps if stage == 3 else 2 * trained


def replica_traffic(run: Run, model: nn.Module, gradient_accumulation_steps: int) -> float:
    """Return the bytes of gradients and weights, over the axes that split samples or states."""
    dims = run.mesh
    tp = dims.tensor_parts
    names = {module: name for name, module in model.named_modules()}
    modules = contents.blocks_of(run, model)
    of_root = contents.shared_outside(model, modules)
    blocks = [names[module] for module in modules if module not in of_root]
    experts = [names[module] for module in _experts(run, model)]
    total = 0.0
    tied = _stages_of_ties(run, model)
    reshard = run.options.reshard_after_forward
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            continue
        shape, size = [*parameter.shape] or [1], parameter.nbytes * tied.get(name, 1)
        split = _tensor_dimension(run.model.tensor if dims.tensor_parallel else {}, name)
        if split is not None:
            shape[split], size = shape[split] // tp, size // tp
        trained = parameter.requires_grad
        if not dims.sharded:
            total += trained * fraction_sent("all_reduce", dims.replicas) * size
            continue
        shard, replicate = dims.shards, dims.replicas
        if dims.axes("experts") and any(name.startswith(f"{module}.") for module in experts):
            shape[0], size = shape[0] // dims.parts("experts"), size // dims.parts("experts")
            shard, replicate = dims.expert_shards, dims.expert_replicas
        # Shards are equal: rows are padded to a multiple of the ranks.
        rows = shape[shard_dimension(shape, shard)]
        size = size // rows * shard * -(-rows // shard)
        inside = any(name.startswith(f"{block}.") for block in blocks)
        again = ((reshard if reshard is not None else not dims.pipelined) and inside) or reshard is True
        passes = 1 if dims.pipelined else gradient_accumulation_steps
        gathers = (2 if again else 1) * passes
        total += fraction_sent("all_gather", shard) * size * gathers
        total += trained * fraction_sent("reduce_scatter", shard) * size * passes
        total += trained * fraction_sent("all_reduce", replicate) * size / shard
    if dims.replicated and not dims.sharded:  # DDP broadcasts the first rank's buffers in each step
        sent = sum(buffer.nbytes for buffer in model.buffers() if buffer.dtype in BROADCAST)
        total += fraction_sent("broadcast", dims.replicas) * sent
    return total / dims.stages


def _stages_of_ties(run: Run, model: nn.Module) -> dict[str, int]:
    """Return the number of ranks of a pipeline that have a tied parameter, of those that several have."""
    if not run.mesh.pipelined:
        return {}
    plan, segments = run.options.pipeline, cast(Chain, model).segments()
    where = boundaries(len(segments), run.mesh.stages * plan.stages_per_rank)
    ranks = {
        names[0]: {plan.rank_of(run.mesh.stages, stage) for stage in stages_with(names, segments, where)}
        for names in contents.tied(model)
    }
    return {name: len(found) for name, found in ranks.items() if len(found) > 1}


def _tensor_dimension(plan: dict[str, str], name: str) -> int | None:
    """Return the dimension of a parameter that the tensor-parallel plan splits, if any."""
    module, _, leaf = name.rpartition(".")
    style = next((style for pattern, style in plan.items() if fnmatchcase(module, pattern)), None)
    if style in ("column", "column_gather", "vocab"):
        return 0
    if style == "experts":
        return 2 if leaf == "down" else 1
    return 1 if style == "row" and leaf == "weight" else None


def _activations(run: Run, task: Task, model: nn.Module, micro: MicroBatch) -> float:
    """Return what tensor-parallel groups, context-parallel groups and neighboring stages exchange, from a forward pass
    over shapes alone.
    """
    tp, stages = run.mesh.tensor_parts, run.mesh.stages
    attended = attend_to_shapes(model)
    sequence = run.options.sequence_parallel
    seen: Seen = []
    hooks = [
        module.register_forward_hook(partial(record_call, seen, style))
        for pattern, style in run.model.tensor.items()
        for module in matching(model, pattern)
    ]
    if sequence:
        for pattern in run.model.blocks:
            hooks.append(matching(model, pattern)[0].register_forward_hook(partial(record_call, seen, "block")))
    batch = {name: value.to("meta") for name, value in micro.batch.items()}
    boundaries = _run_pieces(run, task, model, batch, seen)
    for hook in hooks:
        hook.remove()
    total = sum(_attention_traffic(run, *sizes) for sizes in attended)
    loads = sum(routing.load.nbytes for style, _, _, routing in seen if style == "router")
    total += fraction_sent("all_reduce", run.mesh.parts("sequence")) * loads
    if run.mesh.tensor_parallel:
        whole, one_way = fraction_sent("all_reduce", tp), fraction_sent("all_gather", tp)
        for style, module, inputs, output in seen:
            if style == "experts" and len(inputs) > 1:
                total += whole * inputs[1].nbytes  # the gradient of the routing weights
            if style in ("row", "experts", "norm", "norm_whole") and sequence:
                # One pass gathers, the other one scatters, which is free where the gradient is whole.
                total += (1 if style == "norm_whole" else 2) * one_way * _padded(output, tp)
                total += sum(whole * p.nbytes for p in module.parameters()) if "norm" in style else 0
            elif style == "block":
                total += one_way * _padded(inputs[0], tp)  # the gradient of the whole input of the first block
            elif style in ("row", "experts", "vocab", "norm"):
                total += whole * output.nbytes
            elif style == "column_gather":
                total += one_way * output.nbytes
            elif style == "column" and not _behind_norm(inputs[0], seen):
                total += whole * inputs[0].nbytes if inputs[0].requires_grad else 0
    # Each rank sends to one neighbor, except at the ends: in total, every boundary's state and its gradient.
    return total / stages + boundaries / stages


def _attention_traffic(run: Run, query: Tensor, key: Tensor) -> float:
    """Return what a rank sends for one attention, forward and backward; values have the size of the keys.

    Gathered keys and values: an all-gather, and a reduce-scatter of their gradients. Ulysses: queries, keys and values
    (repeated if there are fewer heads than ranks) and outputs by all-to-all, and their gradients. Ring: keys and values
    to all others in both passes, and their gradients once more, which also return to their owner.
    """
    cp, tp = run.mesh.parts("sequence"), run.mesh.tensor_parts
    if cp == 1:
        return 0.0
    pair = 2 * key.nbytes / tp
    if run.options.context == "ring":
        return (3 * cp - 2) * pair
    if run.options.context == "gather":
        return (fraction_sent("all_gather", cp) + fraction_sent("reduce_scatter", cp)) * cp * pair
    repeats = cp // math.gcd(cp, key.shape[1] // tp)
    return 2 * fraction_sent("all_to_all", cp) * (2 * query.nbytes / tp + repeats * pair)


def _padded(value: Tensor, parts: int) -> float:
    """Return the bytes of (batch, length, ...) with the length padded to a multiple of ``parts``."""
    length = value.shape[1]
    return value.nbytes / length * parts * -(-length // parts)


def _behind_norm(value: Tensor, seen: Seen) -> bool:
    return any(style == "norm" and output is value for style, _, _, output in seen)


def _run_pieces(run: Run, task: Task, model: Any, batch: dict[str, Tensor], seen: Seen) -> float:
    """Run the model over shapes; return the bytes of the states and their gradients between stages."""
    state, keywords = task.inputs(batch)
    if not run.mesh.pipelined:
        model(*state, **keywords)
        return 0.0
    ranks, schedule = run.mesh.stages, run.options.pipeline
    shards = run.mesh.shards if run.mesh.sharded else 1
    total = 0.0
    for name, count in _stages_of_ties(run, model).items():
        # Each sends its shard to every other one, once per step.
        rows, *more = model.get_parameter(name).shape
        total += count * (count - 1) * math.prod(more) * -(-rows // shards) * PRECISIONS[run.recipe.dtype].bytes
    total /= run.recipe.gradient_accumulation_steps
    for stage, (values, parts) in enumerate(states_after_stages(run, model, state, keywords, seen)[:-1]):
        # In a V, the two middle stages are on one rank.
        if schedule.rank_of(ranks, stage) != schedule.rank_of(ranks, stage + 1):
            # A single value per micro-batch is not counted, nor where traffic is measured.
            sent = [value for value in values if value.numel() > run.options.n_microbatches]
            total += sum((1 + value.is_floating_point()) * value.nbytes for value in sent) / parts
    return total


def state_bytes(train: TrainReport) -> dict[str, float]:
    """Return the bytes of weights, master weights, gradients and optimizer per rank, if sharded states divide evenly.

    ZeRO's stages shard the optimizer and its float32 copy of the weights (1), the gradients (2) and the weights (3):
    Rajbhandari et al., 2020, arXiv:1910.02054, section 5. FSDP corresponds to stage 3; pipelines and tensor parallelism
    divide everything.
    """
    run = Run.model_validate(train.settings)
    of_value = PRECISIONS[run.recipe.dtype].bytes
    whole = float(train.parameters * of_value)
    optimizer = run.recipe.optimizer
    moments = bool(optimizer.momentum) if optimizer.name == "sgd" else 2
    states = whole * (moments + bool(optimizer.amsgrad))
    if run.zero_stage is not None:
        precision = PRECISIONS[run.recipe.arithmetic]
        kept = float(train.parameters * precision.bytes)
        # Stage 3 updates float32 weights in place.
        masters = whole if not precision.is_full or run.zero_stage < 3 else 0.0
        sizes = {"weights": (kept, 3), "master_weights": (masters, 1), "gradients": (kept, 2), "optimizer": (states, 1)}
        ranks = run.world_size
        return {kind: size / (ranks if run.zero_stage >= stage else 1) for kind, (size, stage) in sizes.items()}
    # Experts are split over ep and sharded over what is left of the ranks that shard the rest.
    parts, fewer = run.mesh.parts("states", "layers", "tensors"), run.mesh.parts("layers", "tensors")
    experts = train.expert_parameters / train.parameters if run.mesh.axes("experts") else 0.0
    share = (1 - experts) / parts + experts / (fewer * run.mesh.parts("experts") * run.mesh.expert_shards)
    return {kind: size * share for kind, size in (("weights", whole), ("gradients", whole), ("optimizer", states))}
