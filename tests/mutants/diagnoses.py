"""Faults that change numbers: the case that shows each in its first steps, and the cause, or the place alone, that a
diagnosis must name.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """A fault's case, and what its diagnosis must say."""

    case: str
    """Strategy, workload, and optionally a recipe (accumulated: of the hard cases; thrice: in three micro-batches;
    reference: of the plain loop's; grouped, frozen, adapted, muon, smoothed: of the cases with these) and the number of
    ranks.
    """
    cause: str
    """As in CHECKS of scripts/traindiff/formulas.py; empty: none may be named."""
    stage: str
    """Where the first difference is, if no cause is named."""


CAUSES = {
    "norm of some": {
        "norm for clipping of the local shard alone": "fsdp mlp",
        "each group of experts clips by its own norm (Automodel #3816)": "ep moe",
    },
    "norm with a factor": {
        "a third of the gradient's norm (DeepSpeed #7718)": "single llama2 accumulated",
    },
    "no clipping": {
        "ZeRO does not clip": "zero1 llama2 accumulated",
    },
    "not reduced": {
        "DDP never synchronizes": "ddp mlp",
        "the last micro-batch is not reduced (DeepSpeed #7985)": "ddp llama2 accumulated",
    },
    "no gradient": {
        "HSDP's replicas do not average": "hsdp mlp",
        "no gradient goes back between the devices of model parallelism": "mp mnist",
    },
    "zero": {
        "bias of the first layer alone (torchtitan #1593)": "single moe reference",
    },
    "factor": {
        "gradients summed over the ranks, not averaged": "ddp mlp",
        "ZeRO's loss without times gradient_accumulation_steps": "zero1 llama2 accumulated thrice",
        "a pipeline averages over its micro-batches once more": "pp mnist",
        "a pipeline sums its micro-batches (pytorch #144352)": "pp mnist",
        "gradients divided by a loss scale that the loss was not multiplied with (DeepSpeed #7837)": "single llama2",
    },
    "bias": {
        "bias of a row layer added by every rank": "tp mlp",
    },
    "factor of some": {
        "half of the gradient of a split embedding": "tp llama2",
        "experts' gradient times the ranks of ep (Megatron #5956)": "ep moe",
        "a divisor ignored where experts have one shard (pytorch #160285)": "ep moe",
    },
    "other samples": {
        "every rank trains on the whole batch": "ddp mlp",
        "a batch's remainder is dropped": "ddp mlp",
        "the same order in each epoch": "single mlp reference",
    },
    "weights of blocks": {
        "gradients doubled after each micro-batch, on one rank (Megatron #6660)": "single llama2 thrice",
    },
    "means of blocks": {
        "micro-batches averaged, whatever their size": "single mlp reference",
        "each rank's loss divided by its own number of targets": "cp xsum",
    },
    "coefficients of moments": {
        "betas ignored": "single xsum reference",
    },
    "previous gradient": {
        "gradients are never cleared": "single mlp reference",
    },
    "lost blocks": {
        "only the last micro-batch's gradient counts": "single mlp reference",
    },
    "restored state": {
        "a run resumes without the optimizer's state": "fsdp llama2",
        "a run resumes one step too late": "single llama2 reference",
    },
}
"""Cause, as of traindiff's formulas: the faults that it must explain, and the case of each."""
PLACES = {
    "norm": {
        "the norm leaves out the experts (Megatron #5916)": "ep moe accumulated",
        "norms of replicated gradients counted twice (DeepSpeed #8475)": "tp moe",
        "gradients of norms not reduced under sequence parallelism": "tp_sp vit",
    },
    "output": {
        "tensor-parallel ranks read samples of their own (JSC, December 2025)": "tp llama2",
        "rotary positions begin anew on each rank": "cp llama2",
        "parts of sequences by the wrong group of ranks (Megatron #7452)": "fsdp_cp llama2",
        "each rank attends to its own part only": "cp llama2",
        "tokens count once more when they are recomputed (torchtitan #1689)": "single moe accumulated",
        "auxiliary loss by the tokens of a micro-batch (Megatron #2217)": "ddp moe",
        "auxiliary loss by the load of a part of the sequences (Megatron #5047)": "cp moe",
        "rows return to other tokens": "single moe reference",
    },
    "loss": {
        "labels are smoothed over the rank's part of a split vocabulary": "tp_loss llama2 smoothed",
        "logits of the whole vocabulary taken for a rank's part of it (Megatron #7452)": "tp_loss llama2",
    },
    "evaluation": {
        "the test loss is a mean of the batches' means": "single xsum reference",
        "the loss of an evaluation times the number of parts of a sequence": "cp llama2",
    },
    "update": {
        "Muon orthogonalizes shards (DeepSpeed issue 8437)": "fsdp llama2 muon",
    },
    "initial weights": {
        "each rank draws its own adapter": "fsdp llama2 adapted",
    },
    "gradient": {
        "a ring's backward pass with the gradient of other positions (Megatron #1464)": "cp_ring llama2",
        "a ring's backward pass with the log-sum-exp of a block instead of the row's": "cp_ring llama2",
        "gradients of gathered keys and values not reduced": "cp llama2",
        "partial gradients of a chunk taken for whole ones (torchtitan #3412)": "tp llama2 accumulated",
        "the whole factor of a split adapter learns from one rank's part": "tp_sp llama2 adapted",
        "router's gradient from this rank's part of the experts (torchtitan #2387)": "tp moe",
        "tokens' gradient from this rank's part of the experts": "tp moe",
        "the auxiliary loss's gradient times the tensor-parallel ranks (Megatron #7452)": "tp moe",
        "routing weights without a gradient (torchtitan #1805)": "single moe reference",
        "auxiliary loss without its gradient (Automodel #1408)": "single moe reference",
        "the gradient of a module's second use is lost (DeepSpeed #8224)": "ddp xsum",
        "the gradient of one of two uses is added twice (torchtitan #3174)": "ddp xsum",
        "log_softmax of split logits with the identity's gradient (pytorch #190746)": "tp_loss llama2 smoothed",
    },
    "buffers": {
        "bias by this rank's load": "ddp moe",
    },
}
"""Stage in which the first difference is, of faults that no formula explains: a place is said, and no cause."""
DIAGNOSES = {name: Diagnosis(case, cause, "") for cause, faults in CAUSES.items() for name, case in faults.items()}
DIAGNOSES |= {name: Diagnosis(case, "", stage) for stage, faults in PLACES.items() for name, case in faults.items()}

DROPOUT = "captures are without dropout"
UNNAMED = {
    "other dropout masks on each rank of a tensor-parallel group": DROPOUT,
    "FSDP sums bf16 gradients in bf16": "captures are in full precision",
    "memory that nobody wrote is the gradient of an idle expert (pytorch #172439)": "only grouped products have it",
    "a rank whose experts have no rows computes nothing, so that they have no gradient (Automodel #2995)": "no rank of "
    "a case is without rows",
}
"""Faults that change numbers, and why the first steps do not show them."""
