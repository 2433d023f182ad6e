"""Matrix products in float8 (Micikevicius et al., 2022, arXiv:2209.05433), scaled tensor by tensor, by torchao."""

import os

import torch
from torch import nn

from shardlab.errors import UserError

MULTIPLE = 16
"""What cuBLAS's float8 products need the sides of a matrix to be a multiple of."""
CAPABILITY = (8, 9)
"""The first compute capability with them."""


def apply(blocks: list[nn.Module], device: torch.device) -> None:
    """Replace the Linear layers of the blocks that have such sides, in place; on a CPU they are emulated.

    Raises:
        UserError: the device has no float8.
    """
    os.environ.setdefault("TORCHAO_SKIP_LOADING_SO_FILES", "1")  # kernels that are not used here
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) < CAPABILITY:
        raise UserError(f"recipe.precision: {torch.cuda.get_device_name(device)} has no float8; set it to bf16.")
    config = Float8LinearConfig(emulate=device.type == "cpu")
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_fits, config=config)


def _fits(module: nn.Module, _: str) -> bool:
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
