"""Precisions: the types of numbers that a training computes with, and all that follows from each.

To add a precision, add an entry to ``PRECISIONS``. One of states can be ``recipe.dtype``, the type of weights,
gradients, optimizer and their reduction. Any other can be ``recipe.precision``: layers compute in it, and PyTorch's
engines keep everything else in ``recipe.dtype`` (autocast, or the mixed precision of FSDP); DeepSpeed keeps weights
and gradients in it too, with master weights in float32.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Kernel = Literal["flash", "efficient"]
"""Fused attention kernels on a GPU: flash attention, and memory-efficient attention."""


class Precision(NamedTuple):
    """Properties of a precision."""

    dtype: str
    """PyTorch's name of the type that layers compute in."""
    bytes: int
    """Bytes of a value of that type."""
    description: str = ""
    """Text for the documentation of ``recipe.precision``."""
    tolerance: float | None = None
    """Maximum relative difference of a test or validation loss to that of ``single``; None: a low precision, in which
    twins alone say how much is rounding.
    """
    first_tolerance: float | None = None
    """The same for the first losses and the first gradient norm (docs/equality.md)."""
    rounding: float = 0.0
    """Relative error of one rounding of the layers' arithmetic, by which the weights of twins are moved; 0: there are
    none.
    """
    states: bool = False
    """True if weights, gradients and optimizer can have it."""
    arithmetic: str = ""
    """Precision with the same products, whose peaks and kernels apply; empty: its own."""
    attention: tuple[Kernel, ...] = ("flash", "efficient")
    """Fused kernels that support it (PyTorch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)."""
    scales_loss: bool = False
    """True if small gradients become 0 unless the loss is scaled up."""
    unsupported: Mapping[str, str] = MappingProxyType({})
    """Engine or device: why a run with it cannot have this precision."""

    @property
    def is_full(self) -> bool:
        """True if results are compared with ``single`` within a tolerance."""
        return self.tolerance is not None


PRECISIONS = {
    # One rounding: half the distance of 1 to the next value: 2^-24, 2^-53 in float64, and 2^-8 in bf16.
    "float32": Precision(
        "float32", 4, tolerance=1e-4, first_tolerance=3e-5, rounding=6e-8, states=True, attention=("efficient",)
    ),
    "float64": Precision(
        "float64",
        8,
        tolerance=1e-10,
        first_tolerance=1e-11,
        rounding=2**-53,
        states=True,
        attention=(),
        unsupported={"deepspeed": "DeepSpeed does not support float64"},
    ),
    "bfloat16": Precision(
        "bfloat16",
        2,
        states=True,
        arithmetic="bf16",
        unsupported={"deepspeed": "DeepSpeed keeps its optimizer in float32"},
    ),
    "bf16": Precision(
        "bfloat16",
        2,
        "weights stay in dtype (autocast, or the mixed precision of FSDP and DeepSpeed)",
        rounding=2**-8,
    ),
    "fp16": Precision(
        "float16",
        2,
        "DeepSpeed only",
        scales_loss=True,
        unsupported={
            "torch": "fp16 needs DeepSpeed's loss scaling",
            "cpu": "DeepSpeed does not support fp16 on CPUs",
        },
    ),
}
"""Name: precision."""
STATES = tuple(name for name, precision in PRECISIONS.items() if precision.states)
"""Values of ``recipe.dtype``."""
LOW = tuple(name for name in PRECISIONS if name not in STATES)
"""Values of ``recipe.precision``, besides full."""
