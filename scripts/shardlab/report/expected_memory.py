"""Expected memory of a model's state on a rank, from the strategy alone."""

from shardlab.records.reports import TrainReport
from shardlab.settings.precisions import PRECISIONS
from shardlab.settings.recipe import OPTIMIZERS
from shardlab.settings.types import Run


def held(train: TrainReport) -> dict[str, float]:
    """Return the bytes of weights, master weights, gradients and optimizer per rank, if sharded states divide evenly.

    ZeRO's stages shard the optimizer and its float32 copy of the weights (1), the gradients (2) and the weights (3):
    Rajbhandari et al., 2020, arXiv:1910.02054, section 5. FSDP corresponds to stage 3; pipelines and tensor parallelism
    divide everything.
    """
    run = Run.model_validate(train.settings)
    of_value = PRECISIONS[run.recipe.dtype].bytes
    whole = float(train.parameters * of_value)
    states = whole * OPTIMIZERS[run.recipe.optimizer.name].states(run.recipe.optimizer)
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
