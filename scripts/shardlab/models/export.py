"""Export of trained weights to a transformers folder: config, weights under the library's names, tokenizer.

The mixture of experts is Mixtral there, or GLM-4.5 (Glm4Moe) with what DeepSeek-V3 added: sigmoid scores, shared
experts, balance by bias; one tensor per expert, which every version of the library reads.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shardlab.files import write_atomic
from shardlab.models import lora
from shardlab.settings import pretrained
from shardlab.settings.recipe import Adapter
from shardlab.settings.types import CAUSAL, Run

LLAMA = {
    r"embedding\.": "model.embed_tokens.",
    r"layers\.(\d+)\.attention_norm\.": r"model.layers.\1.input_layernorm.",
    r"layers\.(\d+)\.attention\.query\.": r"model.layers.\1.self_attn.q_proj.",
    r"layers\.(\d+)\.attention\.key\.": r"model.layers.\1.self_attn.k_proj.",
    r"layers\.(\d+)\.attention\.value\.": r"model.layers.\1.self_attn.v_proj.",
    r"layers\.(\d+)\.attention\.output\.": r"model.layers.\1.self_attn.o_proj.",
    r"layers\.(\d+)\.mlp_norm\.": r"model.layers.\1.post_attention_layernorm.",
    r"layers\.(\d+)\.(gate|up|down)\.": r"model.layers.\1.mlp.\2_proj.",
    r"norm\.": "model.norm.",
    r"output\.": "lm_head.",
}
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
"""Pattern of our names: those of the library's class; each name matches from its beginning. {}: an expert's number."""
ADAPTER = "adapter"
"""Folder inside of an exported one, with the frozen model in base: next to the merged weights, transformers would add
the adapter to these again.
"""
PEFT_TASKS = dict.fromkeys(CAUSAL, "CAUSAL_LM") | {"summarization": "SEQ_2_SEQ_LM"}
OURS: dict[str, Callable[[Mapping[str, Any]], dict[str, str]]] = {
    "llama": lambda _: LLAMA,
    "moe": lambda args: LLAMA | (GLM if pretrained.moe_class(args) == "Glm4Moe" else MIXTRAL),
}
"""Model: its names by its arguments."""


def write(run: Run, weights: Path, data: Path, folder: Path) -> None:
    """Write ``weights`` of a run into ``folder``, as the library's ``save_pretrained`` would.

    ``data`` is the prepared data set, whose tokenizer it was trained with.

    Raises:
        UserError: the model has no counterpart in the library.
    """
    pretrained.check_export(run.model)
    values = load_file(weights)
    if run.model.adapter:
        _write_adapter(run, run.model.adapter, values, folder / ADAPTER)
        _write_model(run, lora.without_factors(values), data, folder / ADAPTER / "base")
        values = lora.merged(values, run.model.adapter)
    _write_model(run, values, data, folder)


def _write_model(run: Run, values: dict[str, Tensor], data: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if run.model.folder:
        source = Path(run.model.folder)
        for path in [*source.glob("*.json"), *source.glob("*.model")]:
            if "index" not in path.name:
                shutil.copy(path, folder)
        from shardlab import models

        models.construct(run.model, run.task).config.save_pretrained(folder)  # type: ignore[union-attr, operator]
    else:
        names = OURS[run.model.name](run.model.args)
        values = {
            key: part for name, value in values.items() for key, part in _taken_apart(renamed(name, names), value)
        }
        CONFIGS[run.model.name](run).save_pretrained(folder)
        if (data / "tokenizer.json").exists():
            shutil.copy(data / "tokenizer.json", folder)
            about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}
            (folder / "tokenizer_config.json").write_text(json.dumps(about | {"pad_token": "<pad>"}, indent=2) + "\n")
    write_atomic(folder / "model.safetensors", lambda path: save_file(values, path, metadata={"format": "pt"}))


def _write_adapter(run: Run, adapter: Adapter, values: Mapping[str, Tensor], folder: Path) -> None:
    """Write the factors as peft reads them (huggingface.co/docs/peft, "PEFT checkpoint format")."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {} if run.model.folder else OURS[run.model.name](run.model.args)
    factors, layers = {}, []
    for name, value in values.items():
        if name.endswith(lora.FACTORS):
            other = name if run.model.folder else renamed(name, names)
            factors[f"base_model.model.{other}.weight"] = value
            layers += [other.removesuffix(".lora_A")] * other.endswith("lora_A")
    about = {"format": "pt"}
    write_atomic(folder / "adapter_model.safetensors", lambda path: save_file(factors, path, metadata=about))
    settings = {
        "peft_type": "LORA",
        "task_type": PEFT_TASKS.get(run.task),
        "base_model_name_or_path": (run.model.repo or run.model.folder) if run.model.pretrained else None,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": layers,
        "bias": "none",
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def renamed(name: str, patterns: Mapping[str, str]) -> str:
    """Return a weight's name in the library."""
    for pattern, other in patterns.items():
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", other, name)
    raise ValueError(f"{name} has no name in transformers")


def _taken_apart(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the library's tensors of one of ours, which may have several experts."""
    if "{}" in name:
        yield from ((name.format(number), expert.clone()) for number, expert in enumerate(value))
    elif "shared_experts.down" in name:  # all shared experts are one network
        yield name, torch.cat([*value], dim=1)
    elif "shared_experts" in name:
        yield name, torch.cat([*value], dim=0)
    else:
        yield name, value


def _llama(run: Run) -> Any:
    from transformers import LlamaConfig

    args = run.model.args
    return LlamaConfig(
        vocab_size=args["vocab_size"],
        hidden_size=args["dim"],
        intermediate_size=args["hidden"],
        num_hidden_layers=args["layers"],
        num_attention_heads=args["heads"],
        num_key_value_heads=args["kv_heads"],
        rms_norm_eps=1e-5,
        max_position_embeddings=run.data.options["sequence_length"],
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )


def _moe(run: Run) -> Any:
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


CONFIGS = {"llama": _llama, "moe": _moe}
