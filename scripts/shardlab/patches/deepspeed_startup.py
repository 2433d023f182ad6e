"""DeepSpeed's start: without what it would compile for parts that are not used here."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def uncompiled() -> Iterator[None]:
    """``torch.compile`` compiles nothing inside, where DeepSpeed is imported.

    DeepSpeed looks whether the optimizer is its Muon. Importing that compiles a function, for which PyTorch imports its
    whole compiler: 1.5 s on each rank, for an optimizer that no recipe has.
    """
    with mock.patch.object(torch, "compile", lambda function: function):
        yield


def without_shared_memory() -> None:
    """Say that the shared-memory all-reduce cannot be built: on a CPU, DeepSpeed would compile it (half a minute, a C++
    compiler), and only its inference uses it (DeepSpeed issues 7108, 7625).
    """
    import deepspeed

    # Nothing else reads it. To read it would try a compiler for each operator, on each rank, in a temporary folder that
    # a killed rank leaves.
    deepspeed.ops.__compatible_ops__ = {}
