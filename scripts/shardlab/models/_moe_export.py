"""The mixture of experts as the transformers library has it: as Mixtral, or as GLM-4.5 (Glm4Moe) with what DeepSeek-V3
added: sigmoid scores, shared experts, balance by bias.

Names are those of the hub, one tensor per expert, which every version of the library reads.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from shardlab.settings import pretrained
from shardlab.settings.types import Run

MIXTRAL = {
    r"layers\.(\d+)\.router\.": r"model.layers.\1.block_sparse_moe.gate.",
    r"layers\.(\d+)\.experts\.gate": r"model.layers.\1.block_sparse_moe.experts.{}.w1.weight",
    r"layers\.(\d+)\.experts\.down": r"model.layers.\1.block_sparse_moe.experts.{}.w2.weight",
    r"layers\.(\d+)\.experts\.up": r"model.layers.\1.block_sparse_moe.experts.{}.w3.weight",
}
GLM = {
    r"layers\.(\d+)\.router\.bias": r"model.layers.\1.mlp.gate.e_score_correction_bias",
    r"layers\.(\d+)\.router\.": r"model.layers.\1.mlp.gate.",
    r"layers\.(\d+)\.experts\.(gate|up|down)": r"model.layers.\1.mlp.experts.{}.\2_proj.weight",
    r"layers\.(\d+)\.shared\.(gate|up|down)": r"model.layers.\1.mlp.shared_experts.\2_proj.weight",
}
"""Pattern of our names: the library's; {} is the number of the expert."""


def names(args: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the class that has these model arguments."""
    return GLM if pretrained.moe_class(args) == "Glm4Moe" else MIXTRAL


def taken_apart(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the library's tensors of one of ours, which may have several experts; ``name``: see ``names``."""
    if "{}" in name:
        yield from ((name.format(number), expert.clone()) for number, expert in enumerate(value))
    elif "shared_experts.down" in name:  # all shared experts are one network
        yield name, torch.cat([*value], dim=1)
    elif "shared_experts" in name:
        yield name, torch.cat([*value], dim=0)
    else:
        yield name, value


def config(run: Run) -> Any:
    import transformers

    args = run.model.args
    kind = pretrained.moe_class(args)
    common = {
        "vocab_size": args["vocab_size"],
        "hidden_size": args["dim"],
        "num_hidden_layers": args["layers"],
        "num_attention_heads": args["heads"],
        "num_key_value_heads": args["kv_heads"],
        "head_dim": args.get("head_dim") or args["dim"] // args["heads"],
        "num_experts_per_tok": args["top_k"],
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": run.data.options["sequence_length"],
        "tie_word_embeddings": False,
        "architectures": [f"{kind}ForCausalLM"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
    }
    if kind == "Mixtral":
        return transformers.MixtralConfig(
            **common, num_local_experts=args["experts"], intermediate_size=args["hidden"], sliding_window=None
        )
    return transformers.Glm4MoeConfig(
        **common,
        n_routed_experts=args["experts"],
        n_shared_experts=args["shared"],
        moe_intermediate_size=args["hidden"],
        routed_scaling_factor=args.get("scale", 1.0),
        norm_topk_prob=args.get("normalize", True),
        first_k_dense_replace=0,
        num_mtp_layers=0,
    )
