"""Matrix products in float8 (Micikevicius et al., 2022, arXiv:2209.05433) with per-tensor scaling, by torchao."""

import logging
import os

import torch
from torch import nn

log = logging.getLogger(__name__)

MULTIPLE = 16
"""cuBLAS's float8 products need matrix sides that are a multiple of this."""


def apply(blocks: list[nn.Module], device: torch.device) -> None:
    """Replace the blocks' Linear layers with such sides, in place; on a CPU float8 is emulated."""
    os.environ.setdefault("TORCHAO_SKIP_LOADING_SO_FILES", "1")  # kernels that are not used here
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    # A micro-batch has any number of rows, which are the inner dimension of the product that computes the weights'
    # gradient: pad them with zeros to a multiple of 16.
    config = Float8LinearConfig(emulate=device.type == "cpu", pad_inner_dim=True)
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_fits, config=config)
    log.info("Applied float8 to the linear layers of %d blocks%s", len(blocks), ", emulated" if config.emulate else "")


def _fits(module: nn.Module, _: str) -> bool:
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
