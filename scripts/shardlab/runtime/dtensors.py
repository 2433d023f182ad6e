"""DTensors and plain tensors alike.

By their attributes, not by their type: importing DTensor takes half a second that plain tensors do not need.
"""

from typing import cast

from torch import Tensor


def plain(value: Tensor) -> Tensor:
    """Return the full tensor of a DTensor (a collective), or a plain tensor unchanged."""
    full_tensor = getattr(value, "full_tensor", None)
    return cast(Tensor, full_tensor() if full_tensor else value)


def local(value: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, or a plain tensor unchanged."""
    return cast(Tensor, getattr(value, "_local_tensor", value))
