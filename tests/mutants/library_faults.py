"""Models of the transformers library: pieces of them in a pipeline, ties over stages, float32 inside float64."""

from fault import MODELS, NATIVE, PIPELINE, Fault, at

CHAIN, FLOAT64 = f"{MODELS}/_library_chain.py", f"{MODELS}/_float64.py"


def library(name: str) -> tuple[str, ...]:
    """Equality of a model of the library with one device."""
    return at("parity/test_transformers", f"test_equals_one_device[{name}]")


def pieces(name: str) -> tuple[str, ...]:
    """Equality of a model's pieces, run one after the other, with the whole."""
    return at("unit/test_library_chain", f"test_pieces_compute_what_the_whole_model_does[{name}]")


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
        "two stages of one rank part with a tied parameter",
        NATIVE,
        "        self.optimizer.step()\n        self._renew_copies()\n",
        "        self.optimizer.step()\n",
        library("pp_zbv-gpt2"),
    ),
    Fault(
        "the second stage begins with its own embedding",
        CHAIN,
        "if self._begins_with_layers:",
        "if False:",
        pieces("bounds1-gpt2"),
    ),
    Fault(
        "the stage before the head computes what is behind the layers",
        CHAIN,
        "if self._ends_with_layers:",
        "if False:",
        pieces("bounds2-gemma2"),
    ),
    Fault(
        "layers that take more than the states are split",
        CHAIN,
        "isinstance(each, Tensor) and each.requires_grad",
        "False",
        at("unit/test_library_chain", "test_what_layers_have_besides_the_states_is_said"),
    ),
    Fault(
        "norms in float32 in a training in float64",
        FLOAT64,
        "torch.Tensor.double if func is torch.Tensor.float else func",
        "func",
        library("ddp-gemma"),
    ),
]
