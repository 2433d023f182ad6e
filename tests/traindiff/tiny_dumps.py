"""Dumps of two tensors, as other trainers write them for traindiff."""

import torch
from safetensors.torch import save_file

UP, DOWN = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
TENSORS = {"up.weight": UP, "down.weight": DOWN.T.contiguous()}
GRADIENTS = {"gradients": TENSORS}


def dump(folder, files):
    """Write files, by their names without the ending; returns the folder."""
    for name, tensors in files.items():
        path = folder / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    return folder


def times(factor, tensors=TENSORS):
    return {name: factor * value for name, value in tensors.items()}
