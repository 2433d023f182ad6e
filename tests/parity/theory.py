"""Expected communication and memory of a strategy, from sizes and shapes alone, to compare with measurements.

Formulas: DDP 2 (n - 1) / n P and FSDP 3 (n - 1) / n P as in Rajbhandari et al., 2020 (arXiv:1910.02054, section 7),
less what is gathered once; tensor parallelism as in Korthikanti et al., 2022 (arXiv:2205.05198, section 4); a pipeline
sends each boundary's state and its gradient. All are bytes sent per rank, the mean over the ranks, with ring algorithms
(see traffic.fraction_sent).
"""

from torch import nn

from shardlab.measure.traffic import fraction_sent
from shardlab.models import contents
from shardlab.plan.simulate import meta_model
from shardlab.records.reports import TrainReport
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.types import Run


def bytes_per_step(run: Run, tokens: int) -> float | None:
    """Return the bytes that a rank sends in a step of llama2 without accumulation; None if no formula is known.

    ``tokens``: of the step, of all ranks.
    """
    if not run.mesh:
        return 0.0
    model = meta_model(run)
    if not run.mesh.axes("layers", "tensors", "sequence", "experts"):
        return None if run.options.wrap_parameters else _of_replicas(run, model)
    sent = {"tp": _of_tensors, "pp": _of_stages, "cp": _gathered, "cp_ulysses": _turned, "cp_ring": _passed_on}
    if run.strategy not in sent:
        return None
    return _of_replicas(run, model) + sent[run.strategy](run, tokens)


def _state(run: Run, tokens: int) -> int:
    """Return the bytes of a layer's state."""
    return tokens * run.model.args["dim"] * PRECISIONS[run.recipe.dtype].bytes


def _of_tensors(run: Run, tokens: int) -> float:
    """A sum in each direction for attention and for feed-forward, for the embedding and the last norm; then logits."""
    args, parts = run.model.args, run.mesh.tensor_parts
    logits = _state(run, tokens) * args["vocab_size"] / args["dim"]
    sums = (4 * args["layers"] + 2) * fraction_sent("all_reduce", parts) * _state(run, tokens)
    return sums + fraction_sent("all_gather", parts) * logits


def _of_stages(run: Run, _: int) -> float:
    """The state of each boundary and its gradient; every step has whole micro-batches of the same number of rows."""
    rows = run.options.n_microbatches * -(-run.recipe.global_batch_size // run.options.n_microbatches)
    return 2 * (run.mesh.stages - 1) * _state(run, rows * run.data.options["sequence_length"]) / run.mesh.stages


def _keys_and_values(run: Run, tokens: int) -> float:
    """Return the bytes of a rank's keys and values, of all layers."""
    args = run.model.args
    return 2 * args["layers"] * _state(run, tokens) / run.mesh.parts("sequence") * args["kv_heads"] / args["heads"]


def _gathered(run: Run, tokens: int) -> float:
    """Keys and values gathered, and their gradients scattered."""
    return 2 * (run.mesh.parts("sequence") - 1) * _keys_and_values(run, tokens)


def _passed_on(run: Run, tokens: int) -> float:
    """Keys and values to all others in both passes, and their gradients once more, which also return to their owner."""
    return (3 * run.mesh.parts("sequence") - 2) * _keys_and_values(run, tokens)


def _turned(run: Run, tokens: int) -> float:
    """Queries, keys, values and outputs by all-to-all, and their gradients; fewer key heads than ranks are repeated."""
    parts, layers = run.mesh.parts("sequence"), run.model.args["layers"]
    queries, repeats = layers * _state(run, tokens) / parts, max(1, parts // run.model.args["kv_heads"])
    return 2 * fraction_sent("all_to_all", parts) * (2 * queries + repeats * _keys_and_values(run, tokens))


def _of_replicas(run: Run, model: nn.Module) -> float:
    """Gradients and weights, over the axes that split samples or states; the ranks divide the rows of each weight."""
    dims, blocks = run.mesh, contents.blocks_of(run, model)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    if not dims.sharded:
        return fraction_sent("all_reduce", dims.replicas) * whole
    again = sum(parameter.nbytes for block in blocks for parameter in block.parameters())  # also in the backward pass
    sent = (
        fraction_sent("all_gather", dims.shards) * (whole + again)
        + fraction_sent("reduce_scatter", dims.shards) * whole
    )
    return sent + fraction_sent("all_reduce", dims.replicas) * whole / dims.shards


def state_bytes(train: TrainReport) -> dict[str, float]:
    """Return the bytes of weights, gradients and optimizer per rank, if sharded states divide evenly.

    ZeRO's stages shard the optimizer (1), the gradients (2) and the weights (3): Rajbhandari et al., 2020,
    arXiv:1910.02054, section 5. FSDP corresponds to stage 3; pipelines and tensor parallelism divide everything.
    """
    run = Run.model_validate(train.settings)
    whole = float(train.parameters * PRECISIONS[run.recipe.dtype].bytes)
    sizes = {"weights": whole, "gradients": whole, "optimizer": 2 * whole}
    if run.zero_stage is not None:
        from_stage = {"weights": 3, "gradients": 2, "optimizer": 1}
        return {
            kind: sizes[kind] / (run.world_size if run.zero_stage >= stage else 1) for kind, stage in from_stage.items()
        }
    # Experts are split over ep and sharded over what is left of the ranks that shard the rest.
    parts, fewer = run.mesh.parts("states", "layers", "tensors"), run.mesh.parts("layers", "tensors")
    experts = train.expert_parameters / train.parameters if run.mesh.axes("experts") else 0.0
    share = (1 - experts) / parts + experts / (fewer * run.mesh.parts("experts") * run.mesh.expert_shards)
    return {kind: size * share for kind, size in sizes.items()}
