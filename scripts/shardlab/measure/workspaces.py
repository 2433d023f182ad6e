"""What a kernel keeps for its backward pass beside its results, and PyTorch's fake tensors do not have."""

from typing import Any

import torch
from torch import Tensor

PAGE = 4096


def kept(func: Any, args: Any, made: Any) -> Any:
    """Return an operator's results on fake tensors, with the workspace that its kernel has on real ones.

    Only recurrent layers have one (LSTM in float32 and bfloat16; everything else is composed of other operators): on a
    CPU oneDNN's, on a GPU cuDNN's, both of size 0 in PyTorch 2.13 (torch/_meta_registrations.py).
    """
    if func is not torch.ops.aten.mkldnn_rnn_layer.default:
        return made
    outputs, workspace = made[:-1], made[-1]
    sequence: Tensor = args[0]
    batch_first = args[14]
    rows, steps = sequence.shape[:2] if batch_first else reversed(sequence.shape[:2])
    size = lstm_workspace(steps, rows, sequence.shape[-1], args[10], sequence.element_size())
    return (*outputs, workspace.new_empty(size))


def lstm_workspace(steps: int, rows: int, inputs: int, hidden: int, itemsize: int) -> int:
    """Return the bytes of oneDNN's workspace of one direction of one layer, or more: up to a quarter more for widths
    that are multiples of a cache line.

    It has the gates of each step, and the states before and after it with their gradients in float32, in some eleven
    arrays; six of these are as wide as the input if that is wider than the state. Measured: oneDNN publishes no sizes,
    which depend on the CPU's instructions as well.
    """
    line = 64 // itemsize
    hidden, inputs = (-(-width // line) * line for width in (hidden, inputs))
    gates = steps * rows * (4 * hidden + line) * itemsize
    states = hidden * (5.3 * itemsize + 26.5) + max(0, inputs - hidden) * (3.5 * itemsize + 14)
    return gates + int((steps + 1) * rows * states) + 8 * PAGE
