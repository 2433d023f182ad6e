"""Models of the transformers library: pieces in a pipeline, ties over stages, plans that split layers, float64."""

from fault import MODELS, PIPELINE, Fault, S, at

LIBRARY_TENSOR, LIBRARY_EXPERTS = f"{S}parallel/library_tensor.py", f"{S}parallel/library_experts.py"


def library(name: str) -> tuple[str, ...]:
    """Equality of a model of the library with one device."""
    return at("parity/test_transformers", f"test_equals_one_device[{name}]")


def pieces(name: str) -> tuple[str, ...]:
    """Equality of a model's pieces, run one after the other, with the whole."""
    return at("unit/test_library_chain", f"test_pieces_compute_what_the_whole_model_does[{name}]")


def proofs(name: str) -> tuple[str, ...]:
    """A case of the proofs at tiny sizes."""
    return at("parity/test_proofs", f"test_a_fault_is_found_and_named[{name}]")


FAULTS = [
    Fault(
        "a parameter of two stages counted twice in the norm",
        PIPELINE,
        "return self.owner[name] == self.rank",
        "return True",
        library("pp-gpt2"),
    ),
    Fault(
        "each stage trains a tied parameter with its own gradient",
        PIPELINE,
        "            self._sum_ties()\n",
        "",
        library("pp-gpt2"),
    ),
    Fault(
        "keys of the first heads on every rank",
        LIBRARY_TENSOR,
        "first = mesh.get_local_rank() * self.heads // mesh.size()",
        "first = 0",
        library("fsdp_tp@tp=4-llama"),
    ),
    Fault(
        "frequencies of the largest position in this rank's part of the sequence",
        f"{MODELS}/_positions.py",
        "return _cut(call(_with_last(position_ids, whole.flatten()[0])))",
        "return call(position_ids)",
        proofs("longrope_cp-equal-"),
    ),
    Fault(
        "gradients of experts as a sum over the ranks that sent tokens",
        LIBRARY_EXPERTS,
        "_Mean.apply(value.to_local(), mesh.size())",
        "_Mean.apply(value.to_local(), 1)",
        library("ep-mixtral"),
    ),
]
