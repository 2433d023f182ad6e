"""What a rank should hold of a model's state, from the strategy alone. Imports no torch."""

from shardlab.report.records import TrainReport
from shardlab.settings.recipe import OPTIMIZERS
from shardlab.settings.types import Run


def held(train: TrainReport) -> dict[str, float]:
    """Bytes of weights, gradients and optimizer of a rank, where what a strategy divides is divided evenly.

    ZeRO's stages divide the optimizer (1), the gradients (2) and the weights (3): Rajbhandari et al., 2020,
    arXiv:1910.02054, section 5. FSDP is as stage 3; pipelines and tensor parallelism divide all three.
    """
    run = Run.model_validate(train.settings)
    whole = float(train.parameters * (8 if run.recipe.dtype == "float64" else 4))
    states = OPTIMIZERS[run.recipe.optimizer.name].states(run.recipe.optimizer)
    sizes = {"weights": whole, "gradients": whole, "optimizer": whole * states}
    if run.zero_stage is not None:
        divided = {"optimizer": 1, "gradients": 2, "weights": 3}
        return {kind: size / (run.world_size if run.zero_stage >= divided[kind] else 1) for kind, size in sizes.items()}
    parts = run.mesh.degree("dp_shard", "pp", "tp")
    return {kind: size / parts for kind, size in sizes.items()}
