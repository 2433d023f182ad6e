"""Dumps of two tensors, as other trainers write them for traindiff, and the diagnosis of two dumps."""

import argparse

import torch
from safetensors.torch import save_file

from traindiff import command_line
from traindiff.diagnosis import diagnose

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


def compared(other, reference, *options):
    """The diagnosis of two dumps."""
    parser = argparse.ArgumentParser()
    command_line.add_options(parser)
    args = parser.parse_args([*options], argparse.Namespace(other=other, reference=reference))
    return diagnose(command_line.pair(args))
