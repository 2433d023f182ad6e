"""A transformers model of the same class at tiny sizes: its config.json with the sizes replaced, by their keys' names.

What decides about its layers (activations, norms, ties, windows, kinds of layers) stays.
"""

import re
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig

from shardlab.errors import UserError
from shardlab.proof.tiny_runs import VOCABULARY

LAYERS, WIDTH, HEADS, GROUPS, HEAD, HIDDEN, EXPERTS = 4, 64, 4, 2, 16, 96, 4
WINDOW, POSITIONS = 5, 64
NUMBER_OF_LAYERS = re.compile(r"num_hidden_layers|n_layers?|num_layers|(decoder|encoder)_layers|num_decoder_layers")
SIZES: list[tuple[str, int]] = [
    (r"(padded_)?vocab_size(_per_layer_input)?", VOCABULARY),
    (r"hidden_size|n_embd|d_model|n_embed|dim|embedding_size|embed_dim|model_dim|word_embed_proj_dim|lru_width", WIDTH),
    (
        r"(\w+_)?intermediate_size(_\w+)?|(\w+_)?ffn_dim|n_inner|(\w+_)?ffn_hidden_size|attention_hidden_size|d_ff",
        HIDDEN,
    ),
    (NUMBER_OF_LAYERS.pattern, LAYERS),
    (r"(swa_)?num_(swa_)?(attention_)?heads|n_heads?|(decoder_|encoder_)?attention_heads", HEADS),
    (r"(swa_|global_)?(num_)?(swa_|global_)?(key_value|kv)_heads|(n_kv|kv_n)_heads|num_global_key_value_heads", GROUPS),
    (r"(swa_|global_|attention_)?head_dim|kv_channels|hidden_size_per_head|d_kv", HEAD),
    (r"(original_)?max_position_embeddings|n_positions|max_seq_len|n_ctx|max_sequence_length|seq_length", POSITIONS),
    (r"sliding_window(_size)?|attention_(window_size|chunk_size)|window_size", WINDOW),
    (r"(n_routed|num|num_local|moe_num|num_moe|ffn_num|n)_experts|num_local_experts", EXPERTS),
    (r"(num_)?(experts_per_(tok|token)|selected_experts)|moe_k|(moe_)?top_?k|top_k_experts", 2),
    (r"(n|num|moe_num)_shared_experts", 1),
    (r"(moe_)?n_group", 2),
    (r"(moe_)?topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers?|n_dense_layers|moe_layer_start_index|mlp_layer_start", 1),
    (r"q_lora_rank", 24),
    (r"kv_lora_rank|qk_nope_head_dim|(mla_)?v_head_dim", HEAD),
    (r"qk_rope_head_dim|rotary_dim|index_head_dim", 8),
    (r"qk_head_dim", 24),
    (r"index_n_heads", 2),
    (r"index_topk", POSITIONS),
    (r"(ssm_)?state_size|(mamba_)?d_state", 8),
    (r"(n_)?mamba_(n|num)_heads|n_mamba_heads", 8),
    (r"mamba_(d_head|head_?dim)", 16),
    (r"(mamba_)?n_?groups", 2),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"(time_step|mamba_dt)_rank", 8),
    (r"(mamba_)?chunk_size", 8),
    (r"linear_num_key_heads", 2),
    (r"linear_num_value_heads", 4),
    (r"linear_(key_|value_)?head_dim", HEAD),
    (r"full_attention_interval|(attn|expert|hybrid)_layer_period|sliding_window_pattern|layer_group_size", 2),
    (r"global_attn_every_n_layers|moe_layer_freq|interleave_moe_layer_step|no_rope_layer_interval", 2),
    (r"(attn|expert)_layer_offset", 1),
    (r"num_nextn_predict_layers|num_mtp_modules|mtp_num_hidden_layers|num_nextn_layers|num_kv_shared_layers", 0),
    (r"hidden_size_per_layer_input", 16),
    (r"laurel_rank", 8),
]
"""Whole name of a key whose value is a positive number: its tiny value. The first match counts; 0 and none stay."""
LAYER_INDICES = re.compile(r"\w*(layer|attn|attention)\w*(indices|idxs|ids)|global_attn_layers")
"""Keys with a list of layers' numbers."""


def tiny(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a configuration of the same class with tiny sizes, and without dropout."""
    values = config.to_dict()
    layers = next((values[k] for k in values if NUMBER_OF_LAYERS.fullmatch(k) and isinstance(values[k], int)), None)
    return type(config)(**_shrunk(values, layers))


def _shrunk(values: dict[str, Any], layers: int | None) -> dict[str, Any]:
    kept = _layers_kept(values, layers)
    return {key: _value(key, value, values, layers, kept) for key, value in values.items()}


def _value(key: str, value: Any, values: dict[str, Any], layers: int | None, kept: list[int]) -> Any:
    if isinstance(value, dict):
        return value if key.startswith("rope") or "label" in key else _shrunk(value, layers)
    if isinstance(value, list):
        if layers and len(value) == layers:
            return [value[number] for number in kept]
        if LAYER_INDICES.fullmatch(key) and value:
            return [*range(1, LAYERS, 2)]
        return value
    if isinstance(value, float) and ("drop" in key or "jitter" in key):
        return 0.0
    if re.fullmatch(r"\w+_token_(id|index)|\w+_idx", key):
        return value if value is None else 0 if key.startswith("pad") else 1
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return value
    small = next((small for pattern, small in SIZES if re.fullmatch(pattern, key)), value)
    if "head" in key and small == GROUPS:
        heads = next((values[k] for k in ("num_attention_heads", "n_head", "n_heads") if k in values), None)
        return 1 if value == 1 else HEADS if value == heads else GROUPS
    return min(small, value) if small != value else value


def _layers_kept(values: dict[str, Any], layers: int | None) -> list[int]:
    """Return the numbers of the layers that stay: of each kind that the lists per layer distinguish, at least one."""
    if not layers:
        return []
    lists = [value for value in values.values() if isinstance(value, list) and len(value) == layers]
    kinds = [repr([each[number] for each in lists]) for number in range(layers)]
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    others = [number for number in range(layers) if number not in first]
    return sorted((first + others)[:LAYERS])


def write(config: PreTrainedConfig, folder: Path) -> None:
    """Write the tiny configuration into a folder, as config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny(config).save_pretrained(folder)


def read(folder: Path) -> PreTrainedConfig:
    """Read the configuration of a folder of transformers.

    Raises:
        UserError: it has none that the installed library knows.
    """
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{folder}/config.json is not one of transformers {transformers.__version__}: {reason}; name a folder "
            "written by save_pretrained."
        ) from error
