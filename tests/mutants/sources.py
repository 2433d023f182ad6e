"""Silent faults that other projects published, and the faults here that do the same."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """Faults of one kind, by where they were published, and the fault that reproduces them."""

    sources: str
    says: str
    """What went wrong there."""
    fault: str = ""
    """Name of the fault (faults.py) that does the same; empty: there is none, see ``note``."""
    case: str = ""
    """Training that shows it, as in diagnoses.py, where that names none or another; empty, too: a test sees it."""
    note: str = ""
    """Why it is not reproduced, or what a reader must know of the row."""


PUBLISHED = (
    Published(
        "Megatron #7452, #737",
        "label smoothing over a rank's part of the vocabulary",
        "labels are smoothed over the rank's part of a split vocabulary",
    ),
    Published(
        "Megatron #7452",
        "gathered logits enter the loss of a split vocabulary",
        "logits of the whole vocabulary taken for a rank's part of it (Megatron #7452)",
    ),
    Published(
        "Megatron #7452",
        "a loss divided by the rank's own number of tokens",
        "each rank's loss divided by its own number of targets",
        note="there, of the loss of multi-token prediction",
    ),
    Published(
        "Megatron #7452",
        "recomputation gathers over another tensor-parallel group",
        note="a group is that of the tensor's mesh; none is looked up anew in a recomputation",
    ),
    Published(
        "Megatron #7452",
        "embeddings scattered over the wrong group",
        "parts of sequences by the wrong group of ranks (Megatron #7452)",
    ),
    Published(
        "Megatron #7452, #7530; DeepSpeed #1801",
        "the norm for clipping is that of a rank's part",
        "norm for clipping of the local shard alone",
        "tp llama2 accumulated",
    ),
    Published(
        "Megatron #7452",
        "the router's auxiliary gradient doubles under tensor parallelism",
        "the auxiliary loss's gradient times the tensor-parallel ranks (Megatron #7452)",
    ),
    Published(
        "Megatron #7452, #1446",
        "gradients of replicated weights stay partial under tensor parallelism",
        "gradients of norms not reduced under sequence parallelism",
    ),
    Published(
        "Megatron #5916",
        "the norm leaves out the experts",
        "the norm leaves out the experts (Megatron #5916)",
    ),
    Published(
        "DeepSpeed #8475, Megatron-Bridge #4998, ROCm TransformerEngine #715",
        "the norm counts replicated gradients once per rank",
        "norms of replicated gradients counted twice (DeepSpeed #8475)",
    ),
    Published(
        "Megatron #7227",
        "the norm counts a tied embedding on two stages",
        "a parameter of two stages counted twice in the norm",
        note="in a model of the transformers library",
    ),
    Published(
        "Megatron #844",
        "stages train a tied embedding each with its own gradient",
        "each stage trains a tied parameter with its own gradient",
        note="in a model of the transformers library",
    ),
    Published(
        "Megatron #6660",
        "gradients double at each micro-batch where a group has one rank",
        "gradients doubled after each micro-batch, on one rank (Megatron #6660)",
    ),
    Published(
        "Megatron #1754",
        "a vocabulary that the ranks do not divide",
        note="refused before it starts, by `tensor_sizes`",
    ),
    Published(
        "Megatron #1464, #1465",
        "context parallelism with wrong gradients of queries, keys and values",
        "a ring's backward pass with the gradient of other positions (Megatron #1464)",
    ),
    Published(
        "Megatron #1503, TransformerEngine #1615",
        "attention's backward pass with the softmax of a part",
        "a ring's backward pass with the log-sum-exp of a block instead of the row's",
    ),
    Published(
        "Megatron #2217",
        "auxiliary loss by the tokens of a micro-batch",
        "auxiliary loss by the tokens of a micro-batch (Megatron #2217)",
    ),
    Published(
        "Megatron #5047",
        "auxiliary loss by the load of a part of the sequences",
        "auxiliary loss by the load of a part of the sequences (Megatron #5047)",
    ),
    Published(
        "Megatron #5956",
        "experts' gradients times the expert-parallel ranks",
        "experts' gradient times the ranks of ep (Megatron #5956)",
    ),
    Published(
        "torchtitan #3412",
        "partial gradients of a loss in chunks, labelled replicated",
        "partial gradients of a chunk taken for whole ones (torchtitan #3412)",
    ),
    Published(
        "torchtitan #4054",
        "the experts' input has the gradient of one rank's share",
        "tokens' gradient from this rank's part of the experts",
    ),
    Published(
        "torchtitan #4245",
        "a replicated bias added once per tensor-parallel rank",
        "bias of a row layer added by every rank",
    ),
    Published(
        "torchtitan #4154",
        "the routing bias from a part of the load",
        "bias by this rank's load",
    ),
    Published(
        "torchtitan #3257",
        "validation counts tokens after the split of sequences",
        "the loss of an evaluation times the number of parts of a sequence",
    ),
    Published(
        "torchtitan #3206",
        "context parallelism gathers the dimension of heads",
        note="here the shapes of masks and keys then differ, which stops the training",
    ),
    Published(
        "torchtitan #3174",
        "a tied weight's gradient added twice",
        "the gradient of one of two uses is added twice (torchtitan #3174)",
    ),
    Published(
        "torchtitan #1593",
        "the routing bias of the first layer alone is updated",
        "bias of the first layer alone (torchtitan #1593)",
    ),
    Published(
        "torchtitan #1689",
        "tokens count once more when they are recomputed",
        "tokens count once more when they are recomputed (torchtitan #1689)",
    ),
    Published(
        "torchtitan #1805",
        "routing weights without a gradient",
        "routing weights without a gradient (torchtitan #1805)",
    ),
    Published(
        "torchtitan #2387; transformers #48205, #48687",
        "the router's gradient from a rank's part of the experts",
        "router's gradient from this rank's part of the experts (torchtitan #2387)",
    ),
    Published(
        "DeepSpeed #8154, #8152",
        "gradients divided by the micro-batches once too often in a pipeline",
        "a pipeline averages over its micro-batches once more",
    ),
    Published(
        "pytorch #144352",
        "a pipeline sums its micro-batches",
        "a pipeline sums its micro-batches (pytorch #144352)",
    ),
    Published(
        "DeepSpeed #8158",
        "ZeRO-3 fetches padded weights by their size without padding",
        note="in an option of DeepSpeed that is off here; the weights that ZeRO-3 gathers are compared bit by bit",
    ),
    Published(
        "DeepSpeed #8224",
        "ZeRO-2 loses the gradient of a module's second use",
        "the gradient of a module's second use is lost (DeepSpeed #8224)",
    ),
    Published(
        "DeepSpeed #7985",
        "the last micro-batch is not reduced",
        "the last micro-batch is not reduced (DeepSpeed #7985)",
    ),
    Published(
        "DeepSpeed #7967, #7981",
        "micro-batches are lost",
        "only the last micro-batch's gradient counts",
    ),
    Published(
        "DeepSpeed #7718",
        "a third of the gradient's norm, by which it is clipped",
        "a third of the gradient's norm (DeepSpeed #7718)",
    ),
    Published(
        "DeepSpeed #7837, #7839",
        "gradients divided by a loss scale of 65536 that nothing was multiplied with",
        "gradients divided by a loss scale that the loss was not multiplied with (DeepSpeed #7837)",
    ),
    Published(
        "DeepSpeed #8437, #8090",
        "Muon orthogonalizes shards",
        "Muon orthogonalizes shards (DeepSpeed issue 8437)",
    ),
    Published(
        "pytorch #190746",
        "log_softmax of split logits with the identity's gradient",
        "log_softmax of split logits with the identity's gradient (pytorch #190746)",
        note="PyTorch's own fault, used as a loss with label smoothing would",
    ),
    Published(
        "pytorch #190626",
        "bf16 gradients are summed in bf16",
        "FSDP sums bf16 gradients in bf16",
        "fsdp vit",
        "a rounding, and in bf16 alone",
    ),
    Published(
        "pytorch #162338",
        "an average that sums",
        "gradients summed over the ranks, not averaged",
    ),
    Published(
        "pytorch #153016",
        "an all-gather whose gradient is not reduced",
        "gradients of gathered keys and values not reduced",
    ),
    Published(
        "pytorch #160285",
        "a divisor of gradients ignored where experts have one shard",
        "a divisor ignored where experts have one shard (pytorch #160285)",
    ),
    Published(
        "pytorch #172439",
        "memory that nobody wrote is the gradient of an idle expert",
        "memory that nobody wrote is the gradient of an idle expert (pytorch #172439)",
        note="of grouped products, which run on GPUs",
    ),
    Published(
        "transformers #34191",
        "the mean of micro-batches' means",
        "micro-batches averaged, whatever their size",
    ),
    Published(
        "transformers #48792, #48873",
        "each rank trains an adapter of its own",
        "each rank draws its own adapter",
    ),
    Published(
        "mcore-bridge #173",
        "an adapter's replicated factor is not summed over tensor-parallel ranks",
        "the whole factor of a split adapter learns from one rank's part",
    ),
    Published(
        "mcore-bridge #173",
        "an adapter's second factor is exported as zeros",
        "lora_B exported as zeros",
        note="of a file that no training reads",
    ),
    Published(
        "Automodel #1408",
        "the auxiliary loss has no gradient",
        "auxiliary loss without its gradient (Automodel #1408)",
    ),
    Published(
        "Automodel #2995",
        "no gradient on a rank whose experts have no rows",
        "a rank whose experts have no rows computes nothing, so that they have no gradient (Automodel #2995)",
        note="no rank of the small trainings is without rows",
    ),
    Published(
        "Automodel #3816",
        "each group of experts clips by its own norm",
        "each group of experts clips by its own norm (Automodel #3816)",
    ),
    Published(
        "minimind #858",
        "one expert per token with normalized weights, of which the router learns nothing",
        "top 1 with normalized weights, of which the router learns nothing (minimind #858)",
        note="a model's fault, alike under every strategy: refused",
    ),
    Published(
        "accelerate #4177",
        "a layer with a window over positions sees its rank's part",
        "a layer with a window over positions sees its rank's own part only (accelerate #4177)",
        note="such layers are refused under context parallelism",
    ),
    Published(
        "accelerate #3938",
        "ranks train on the same batches",
        "every rank trains on the whole batch",
    ),
    Published(
        "accelerate #4195",
        "every epoch in the order of the first",
        "the same order in each epoch",
    ),
    Published(
        "KempnerForge 1f95035",
        "the optimizer's moments are lost on a resume",
        "a run resumes without the optimizer's state",
        "fsdp llama2 resumed",
    ),
    Published(
        "KempnerForge #57",
        "the place in the data is lost on a resume",
        "a run resumes one step too late",
        "single llama2 resumed",
    ),
    Published(
        "JSC course, December 2025",
        "tensor-parallel ranks read samples of their own",
        "tensor-parallel ranks read samples of their own (JSC, December 2025)",
    ),
)
