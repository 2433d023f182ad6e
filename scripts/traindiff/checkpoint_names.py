"""Checkpoints of other trainers: the steps in their names, and those that have to be converted first.

Hugging Face's `checkpoint-N/model.safetensors`, also in shards, are read as they are.
"""

import re
from pathlib import Path

HUGGING_FACE = re.compile(r"(?<![a-z])checkpoint-(\d+)(?!\d)")
SAFETENSORS = "safetensors.torch.save_file"
PREPARED = f"{{name: value.clone() for name, value in state.items()}}, 'weights-N.safetensors') ({SAFETENSORS})"
FORMATS = (
    ("*.nemo", "NeMo's archive", "unpack it (`tar -xf`) and convert the checkpoint in it"),
    ("*.distcp", "a distributed checkpoint (torchtitan, NeMo, Megatron)",
     "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt`, then save_file("
     f"{PREPARED}"),
    ("*zero_pp_rank_*", "DeepSpeed's ZeRO checkpoint",
     "`python zero_to_fp32.py . weights-N --safe_serialization` in its folder"),
    ("mp_rank_*", "a checkpoint of Megatron or DeepSpeed",
     "export it to safetensors: Megatron Bridge for Megatron; for DeepSpeed, take torch.load(FILE)['module'] and "
     f"save_file({PREPARED}"),
    ("*.ckpt", "Lightning's checkpoint",
     f"take state = torch.load(FILE, weights_only=True)['state_dict'] and save_file({PREPARED}"),
    ("pytorch_model*.bin", "Hugging Face's old format", "load the model and call save_pretrained()"),
    ("*.pt", "a file of torch.save", f"take state = torch.load(FILE, weights_only=True) and save_file({PREPARED}"),
    ("*.pth", "a file of torch.save", f"take state = torch.load(FILE, weights_only=True) and save_file({PREPARED}"),
)  # fmt: skip
"""File names of formats that are not safetensors, the more specific first."""


def from_zero(name: str) -> str:
    """Return a path with its step counted from 0: `checkpoint-1` has the weights after step 0."""

    def step(found: re.Match[str]) -> str:
        return f"step-{int(found[1]) - 1}" if int(found[1]) else "initial"

    return HUGGING_FACE.sub(step, name)


def advice(source: Path) -> str | None:
    """Return how to convert a file or folder without safetensors; None: it is of no known format."""
    for pattern, what, how in FORMATS:
        found = [source] if source.is_file() and source.match(pattern) else source.rglob(pattern)
        if (path := next(iter(found), None)) is not None:
            return f"{path} is {what}, not safetensors; to compare it: {how}."
    return None
