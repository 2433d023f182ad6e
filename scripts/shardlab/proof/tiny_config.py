"""A transformers model of the same class at tiny sizes: its config.json with the sizes replaced, by their keys' names.

What decides about its layers (activations, norms, ties, windows, kinds of layers) stays.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto

from shardlab.errors import UserError
from shardlab.models._transformers import EXPERTS_PER_TOKEN, configuration
from shardlab.proof.tiny_runs import PICTURE, VOCABULARY

LAYERS, WIDTH, HEADS, GROUPS, HEAD, ROTARY, HIDDEN, EXPERTS = 4, 64, 4, 2, 16, 8, 96, 4
WINDOW, POSITIONS = 5, 64
NUMBER_OF_LAYERS = re.compile(r"num_hidden_layers|n_layers?|num_layers|(decoder|encoder)_layers|num_decoder_layers")
QUERY_HEADS = r"(swa_)?num_(swa_)?(attention_)?heads|n_heads?|((de|en)coder_)?attention_heads|linear_num_(value_)?heads"
SIZES: list[tuple[str, int]] = [
    (r"(\w+_)?vocab_size(_per_layer_input)?|n_words|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"hidden_size|n_embd|d_model|n_embed|dim|emb(edding|ed)?_(size|dim)|model_dim|lru_width", WIDTH),
    (r"word_embed_proj_dim|embedding_dim", WIDTH),
    (r"(\w+_)?(intermediate_size(_\w+)?|ffn_dim|ffn_hidden_size)|n_inner|d_ff|dff|dim_ff|d_inner", HIDDEN),
    (r"attention_hidden_size", WIDTH),
    (NUMBER_OF_LAYERS.pattern, LAYERS),
    (QUERY_HEADS, HEADS),
    (r"(swa_|global_)?(num_)?(swa_|global_)?(key_value|kv)_heads|(n_kv|kv_n)_heads|num_global_key_value_heads", GROUPS),
    (r"(swa_|global_|attention_)?head_dim|kv_channels|hidden_size_per_head|d_kv|d_head|dim_head", HEAD),
    (r"(original_)?max_position_embeddings|n_positions|max_seq_len|n_ctx|max_sequence_length|seq_length", POSITIONS),
    (r"context_length|model_max_length", POSITIONS),
    (r"sliding_window(_size)?|attention_(window_size|chunk_size)|window_size", WINDOW),
    (r"(n_routed|num|num_local|moe_num|num_moe|ffn_num|n)_experts|num_local_experts", EXPERTS),
    (EXPERTS_PER_TOKEN.pattern, 2),
    (r"(n|num|moe_num)_shared_experts", 1),
    (r"zero_expert_num", 2),
    (r"(moe_)?n_group|num_expert_group", 2),
    (r"(moe_)?topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers?|n_dense_layers|moe_layer_start_index|mlp_layer_start", 1),
    (r"q_lora_rank", 24),
    (r"kv_lora_rank|qk_nope_head_dim|(mla_)?v_head_dim", HEAD),
    (r"qk_rope_head_dim|rotary_dim|index_head_dim", ROTARY),
    (r"qk_head_dim", HEAD + ROTARY),
    (r"index_n_heads", 2),
    (r"index_topk", POSITIONS),
    (r"(ssm_)?state_size|(mamba_)?d_state", 8),
    (r"(n_)?mamba_(n|num)_heads|n_mamba_heads", 8),
    (r"mamba_(d_head|head_?dim)", HEAD),
    (r"(mamba_)?n_?groups", 2),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"(time_step|mamba_dt)_rank", 8),
    (r"(mamba_)?chunk_size", 8),
    (r"linear_num_key_heads", 2),
    (r"linear_(key_|value_)?head_dim", HEAD),
    (r"full_attention_interval|(attn|expert|hybrid)_layer_period|sliding_window_pattern|layer_group_size", 2),
    (r"global_attn_every_n_layers|moe_layer_freq|interleave_moe_layer_step|no_rope_layer_interval", 2),
    (r"(attn|expert)_layer_offset", 1),
    (r"num_nextn_predict_layers|num_mtp_modules|mtp_num_hidden_layers|num_nextn_layers|num_kv_shared_layers", 0),
    (r"hidden_size_per_layer_input|ple_embed_dim|hc_lowrank|heads_per_ngram", 16),
    (r"laurel_rank", 8),
    (r"image_size", PICTURE),
    (r"patch_size", PICTURE // 4),
]
"""Whole name of a key whose value is a positive number: its tiny value. The first match counts; 0 and none stay."""
LAYER_INDICES = re.compile(r"\w*(layer|attn|attention)\w*(indices|idxs|ids)|global_attn_layers")
"""Keys with a list of layers' numbers."""


def tiny(config: PreTrainedConfig, *, fill: bool = False) -> PreTrainedConfig:
    """Return a configuration of the same class with tiny sizes, and without dropout.

    ``fill``: give sizes that are none a value, too; the defaults of some classes are no complete model.

    Raises:
        UserError: the class does not take these sizes together.
    """
    try:
        return type(config)(**_shrunk(config.to_dict(), None, fill=fill))
    except Exception as error:  # each class checks in its own way
        reason = " ".join(str(error).split())
        raise UserError(f"no rule of proof/tiny_config.py makes a tiny {type(config).__name__}: {reason}.") from error


def _shrunk(values: dict[str, Any], outer: int | None, *, fill: bool) -> dict[str, Any]:
    layers = _number_of_layers(values) or outer
    kept = _layers_kept(values, layers)
    return {key: _value(key, value, values, kept, fill=fill) for key, value in values.items()}


def _number_of_layers(values: dict[str, Any]) -> int | None:
    own = (value for key, value in values.items() if NUMBER_OF_LAYERS.fullmatch(key) and isinstance(value, int))
    return next(own, None)


def _value(key: str, value: Any, values: dict[str, Any], kept: list[int], *, fill: bool) -> Any:
    """Return a key's tiny value; ``kept``: see ``_layers_kept``."""
    if isinstance(value, dict):
        if "label" in key:
            return value
        if key.startswith("rope"):
            rotated = values.get("qk_rope_head_dim") and ROTARY
            return _rope(value, rotated or int(HEAD * (value.get("partial_rotary_factor") or 1)))
        if value and all(str(name).isdigit() for name in value):  # by layer
            given = {int(name): each for name, each in value.items()}
            own = {new: given[number] for new, number in enumerate(kept) if number in given}
            return {
                number: {name: _value(name, each[name], values | each, kept, fill=fill) for name in each}
                for number, each in own.items()
            }
        return _shrunk(value, len(kept), fill=fill)
    if key == "attention_types" and value:  # of GPT-Neo: kinds, and how often they are repeated
        return [[value[0][0], LAYERS // len(value[0][0])]]
    if isinstance(value, list):
        if LAYER_INDICES.fullmatch(key) and value:
            return [*range(1, LAYERS, 2)]
        if len(value) == _number_of_layers(values):
            value = [value[number] for number in kept]
        return [_value(key, each, values, kept, fill=fill) for each in value]
    if isinstance(value, float) and ("drop" in key or "jitter" in key):
        return 0.0
    if isinstance(value, bool) or (isinstance(value, int) and value <= 0 and not key.endswith("_token_id")):
        return value
    if re.fullmatch(r"\w+_token_(id|index)|\w+_idx", key):
        return value if value is None else 0 if key.startswith("pad") else 1
    if isinstance(value, int) or (fill and value is None):
        return _size(key, value, values)
    return value


def _rope(values: dict[str, Any], rotated: int) -> dict[str, Any]:
    """Return the settings of rotary positions for heads of which ``rotated`` values are rotated; some have them by kind
    of layer.
    """
    changed = {
        "original_max_position_embeddings": POSITIONS // 2,
        "mrope_section": [rotated // 4, rotated // 8, rotated // 8],
    }
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found[key] = _rope(value, rotated)
        elif key in changed and value:
            found[key] = changed[key]
        elif key in ("short_factor", "long_factor") and value:
            found[key] = value[: rotated // 2]
        else:
            found[key] = value
    return found


def _size(key: str, value: int | None, values: dict[str, Any]) -> int | None:
    small = next((small for pattern, small in SIZES if re.fullmatch(pattern, key)), value)
    if small == value or small is None or value is None:
        return small
    if small == GROUPS and "head" in key:  # one for all query heads, one for each, or in between
        heads = next((each for name, each in values.items() if re.fullmatch(QUERY_HEADS, name)), None)
        return 1 if value == 1 else HEADS if value == heads else GROUPS
    rotary = values.get("qk_rope_head_dim")
    if key == "head_dim" and rotary:  # latent attention: that of a query's rotated part, or of both parts
        return ROTARY if value == rotary else HEAD + ROTARY
    if key == "attention_hidden_size" or (key == "attention_head_dim" and "attention_hidden_size" in values):
        width = WIDTH * max(1, values["attention_hidden_size"] // values["hidden_size"])
        return width if key == "attention_hidden_size" else width // HEADS
    if re.fullmatch(QUERY_HEADS, key) and "expand" in values and "state_size" in values:  # heads of Mamba's inner width
        return 2 * HEADS
    return min(small, value) if small <= GROUPS else small


def _layers_kept(values: dict[str, Any], layers: int | None) -> list[int]:
    """Return the number of the layer that each tiny layer is like: each kind that what is given per layer distinguishes
    has as many as the others.
    """
    if not layers:
        return []
    lists = [value for value in values.values() if isinstance(value, list) and len(value) == layers]
    other = {int(number): repr(each) for number, each in (values.get("per_layer_config") or {}).items()}
    kinds = [repr([other.get(number), *(each[number] for each in lists)]) for number in range(layers)]
    # The first one of each kind, then the second one of each, and so on.
    by_turns = sorted(range(layers), key=lambda number: (kinds[:number].count(kinds[number]), number))
    kept = sorted(by_turns[:LAYERS])
    return [kept[number % len(kept)] for number in range(LAYERS)]


def write(config: Any, folder: Path, tensor_parts: int = 1) -> None:
    """Write the tiny configuration into a folder, as config.json.

    ``tensor_parts``: largest degree of tensor parallelism. Fewer key and value heads than that are one, so that they
    are fewer than the ranks of a proof, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not config.is_heterogeneous and getattr(config, "num_key_value_heads", None) in range(1, tensor_parts):
        config.num_key_value_heads = 1
    tiny(config).save_pretrained(folder)


def task_of(config: PreTrainedConfig) -> str:
    """Return the task that a type of model has here: what the library has a class for."""
    if config.is_encoder_decoder:
        return "summarization"
    pictures = config.model_type in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return "classification" if pictures else "language_modelling"


INCOMPLETE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "lfm2_moe": {"num_hidden_layers": LAYERS, "layer_types": ["conv", "full_attention"] * 2},
    "qwen4_exp_text": {"heads_per_ngram": 2, "ngram_vocab_size_base": VOCABULARY, "split_ngram_parts": 2},
}
"""Type of model: what its class has no default for."""


def write_type(kind: str, folder: Path, *, fill: bool) -> None:
    """Write the tiny configuration of a type of model, from the defaults of its class; ``fill``: see ``tiny``.

    Raises:
        UserError: the class does not take these sizes together.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[kind](**INCOMPLETE.get(kind, {}))
    except Exception as error:
        raise UserError(
            f"{kind}: the defaults of its class are no configuration: {' '.join(str(error).split())}."
        ) from error
    tiny(config, fill=fill).save_pretrained(folder)


def read(folder: Path, changes: Mapping[str, Any] | None = None) -> PreTrainedConfig:
    """Read the configuration of a folder of transformers, with ``changes`` over its keys.

    Raises:
        UserError: it has none that the installed library knows.
    """
    try:
        return configuration(folder, changes or {})[0]
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{folder}/config.json is not one of transformers {transformers.__version__}: {reason}; name a folder "
            "written by save_pretrained."
        ) from error
