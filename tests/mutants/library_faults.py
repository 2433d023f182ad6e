"""Models of the transformers library, split by its plans: faults after which the loss is right."""

from fault import FSDP, Fault, S, at

LIBRARY_TENSOR, LIBRARY_EXPERTS = f"{S}parallel/library_tensor.py", f"{S}parallel/library_experts.py"


def of_library(name: str) -> tuple[str, ...]:
    """Equality of a transformers model with one device; these are cases of the long form."""
    return ("--long", *at("parity/test_transformers", f"test_equals_one_device[{name}]"))


FAULTS = [
    Fault(
        "the library's sum of the gradients of norms per head, of all micro-batches so far after each",
        LIBRARY_TENSOR,
        "OURS[style] if style in OURS else ALL_PARALLEL_STYLES[style]",
        "ALL_PARALLEL_STYLES[style]",
        of_library("tp-qwen3-hard"),
    ),
    Fault(
        "gradients of norms per head from this rank's heads",
        LIBRARY_TENSOR,
        "value.to_local(grad_placements=[Partial()])",
        "value.to_local()",
        of_library("tp-qwen3"),
    ),
    Fault(
        "masks of attention that are the same for every rank's heads",
        LIBRARY_TENSOR,
        "torch.manual_seed(common + rank)",
        "torch.manual_seed(common)",
        at("parity/test_dropout", "test_heads_of_transformers_models_have_masks_of_their_own"),
    ),
    Fault(
        "norms between layers whose sequences are split, without a layout",
        LIBRARY_TENSOR,
        'if not f"{name}.".startswith(tuple(f"{each}." for each in split)):',
        "if False:",
        of_library("tp_sp-qwen3"),
        error="got mixed torch.Tensor and DTensor",
    ),
    Fault(
        "gradients of experts as a sum over the ranks that sent tokens",
        LIBRARY_EXPERTS,
        "_Mean.apply(value.to_local(), mesh.size())",
        "_Mean.apply(value.to_local(), 1)",
        of_library("ep-mixtral"),
    ),
    Fault(
        "FSDP shards the packed dimension",
        FSDP,
        "if size % ranks == 0 and dimension != packed)",
        "if size % ranks == 0)",
        at("unit/test_tensor_types", "test_packed_matrices_are_sharded_along_another_dimension"),
    ),
]
