"""A transformers model of the same class at tiny sizes: its config.json with the sizes replaced, by their keys' names.

What decides about its layers (activations, norms, ties, kinds of layers) stays. What decides by a length (windows,
blocks, positions) becomes smaller than a proof's sequence, so that there are tokens on both sides of it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from shardlab.errors import UserError
from shardlab.models._library_chain import example, on_fake_tensors
from shardlab.models._transformers import CLASSES, WITHOUT_EFFECT, floats
from shardlab.proof.step_on_ranks import LENGTH, LOWEST, NOISE, PICTURE, VOCABULARY

LAYERS, WIDTH, HEADS, GROUPS, HEAD, ROTARY, HIDDEN, EXPERTS = 4, 64, 4, 2, 16, 8, 96, 4
MOST_LAYERS = 2 * LAYERS
"""Layers of a model with more than ``LAYERS`` kinds of them."""
POSITIONS = 4 * LENGTH
"""Positions of a table, which no sequence exceeds."""
PICTURES = (PICTURE, 2 * PICTURE, 4 * PICTURE, 8 * PICTURE)
"""Pixels of a side: the fewest that a model takes."""
WINDOW = 2
"""Patches of a side of a window in a picture: its windows divide it at each stage."""
CROSSED = LENGTH - 2
"""Number of positions beyond which a model computes otherwise: a sequence exceeds it, and so does one of two parts that
have its head and tail, or its halves, but not the other.
"""
FEW = 4
"""A number that the tokens of a sequence exceed."""
NEVER = 10**9
"""A length that no sequence exceeds."""
NUMBER_OF_LAYERS = re.compile(
    r"num_hidden_layers|n_layers?|num_layers|num_blocks|(decoder|encoder)_layers|num_decoder_layers"
)
QUERY_HEADS = (
    r"(swa_)?num_(swa_)?(attention_)?heads|n_heads?|((de|en)coder_)?attention_heads|linear_num_(value_)?heads|"
    r"num_attention_heads_per_layer"
)
MAXIMUM = re.compile(
    r"max_position_embeddings|n_positions|max_seq_len|n_ctx|max_sequence_length|seq_length|context_length|"
    r"model_max_length"
)
"""Keys with the number of positions of a model: of its table, or beyond which rotary positions are scaled."""
EXPERTS_PER_TOKEN = re.compile(r"(num_)?(experts_per_(tok|token)|selected_experts)|moe_k|(moe_)?top_?k|top_k_experts")
ORIGINAL = "original_max_position_embeddings"
DYNAMIC = "'rope_type': 'dynamic'"
"""In a configuration's values: frequencies change beyond the number of positions of ``MAXIMUM``."""
LENGTHS: list[tuple[str, int]] = [
    (ORIGINAL, CROSSED),
    (r"attention_window", 4),  # LED takes even ones
    (r"(\w+_)?window(_size|_len)?|\w*attention_chunk_size|local_attention", 5),
    (r"floor_scale|\w+_floor|rel_extent|mem_len", 6),
    (r"\w*budget", LENGTH // 2),
    (r"(index_|sparse_)?block_size|\w*compress_(ratio|rate)s?|(heavily_)?compressed_(sparse_)?attention", 4),
    (r"index_topk", 3),
    (r"index_topk_blocks|(index_)?(local|init)_blocks", 1),
    (r"(mamba_|linear_)?chunk_size", 8),
    (r"\w*num_buckets", 8),
    (r"\w*max_distance", 12),
]
"""Whole name of a key with a length, a block or a number of positions: its tiny value, which a sequence exceeds."""
SIZES: list[tuple[str, int]] = [
    (r"(\w+_)?vocab_size(_per_layer_input)?|n_words|encoder_hash_byte_group_vocab", VOCABULARY),
    (r"hidden_size|n_embd|d_model|n_embed|dim|emb(edding|ed)?_(size|dim)|model_dim|lru_width", WIDTH),
    (r"word_embed_proj_dim|embedding_dim", WIDTH),
    (r"(\w+_)?(intermediate_size(_\w+)?|ffn_dim|ffn_hidden_size)|n_inner|d_ff|dff|dim_ff|d_inner", HIDDEN),
    (r"attention_hidden_size", WIDTH),
    (QUERY_HEADS, HEADS),
    (r"(swa_|global_)?(num_)?(swa_|global_)?(key_value|kv)_heads|(n_kv|kv_n)_heads|num_global_key_value_heads", GROUPS),
    (r"(swa_|global_|attention_)?head_dim|kv_channels|hidden_size_per_head|d_kv|d_head|dim_head", HEAD),
    (r"(n_routed|num|num_local|moe_num|num_moe|ffn_num|n)_experts|num_local_experts", EXPERTS),
    (EXPERTS_PER_TOKEN.pattern, 2),
    (r"(n|num|moe_num)_shared_experts", 1),
    (r"zero_expert_num", 2),
    (r"num_random_blocks", 1),
    (r"(moe_)?n_group|num_expert_group", 2),
    (r"(moe_)?topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers?|n_dense_layers|moe_layer_start_index|mlp_layer_start", 1),
    (r"moe_layer_end_index", LAYERS - 1),
    (r"max_window_layers|num_layers_per_stack", LAYERS // 2),
    (r"num_kv_shared_layers", LAYERS // 2),
    (r"q_lora_rank|o_lora_rank", 24),
    (r"kv_lora_rank|qk_nope_head_dim|(mla_)?v_head_dim", HEAD),
    (r"qk_rope_head_dim|rotary_dim|index_head_dim", ROTARY),
    (r"qk_head_dim", HEAD + ROTARY),
    (r"indexer_kv_heads", 1),
    (r"indexer_head_dim", HEAD),
    (r"index(er)?_n_heads", 2),
    (r"(ssm_)?state_size|(mamba_)?d_state", 8),
    (r"(n_)?mamba_(n|num)_heads|n_mamba_heads", 8),
    (r"mamba_(d_head|head_?dim)", HEAD),
    (r"(mamba_)?n_?groups", 2),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r"(time_step|mamba_dt)_rank", 8),
    (r"linear_num_key_heads", 2),
    (r"linear_(key_|value_)?head_dim", HEAD),
    (r"full_attention_interval|(attn|expert|hybrid)_layer_period|sliding_window_pattern|layer_group_size", 2),
    (r"global_attn_every_n_layers|moe_layer_freq|interleave_moe_layer_step|no_rope_layer_interval|rescale_every", 2),
    (r"(attn|expert)_layer_offset", 1),
    (r"num_nextn_predict_layers|num_mtp_modules|mtp_num_hidden_layers|num_nextn_layers", 0),
    (r"hidden_size_per_layer_input|ple_embed_dim|hc_lowrank|heads_per_ngram", 16),
    (r"laurel_rank", 8),
    (r"image_size", PICTURE),
    (r"patch_size", PICTURE // 4),
]
"""Whole name of a key whose value is a positive number: its tiny value. The first match counts; 0 and none stay."""
NO_LENGTHS = re.compile(
    r"\w*(theta|_id|_ids|_index|idx|indices|idxs|rank|sizes?|dims?|depths?|channels|scale|scaling|scalar|multiplier|factor|"
    r"encoder_stride|coef\w*|softcap\w*|soft_cap|clip\w*|threshold|multiple_of|divisible_by|limit|iters|seed|eps|alpha|fast|slow|heads|"
    r"types|labels?|experts|rate|_max|_min|groups|base|hidden_size_global|d_rel)"
)
"""Keys of other numbers that a tiny model keeps: no tokens are counted with them."""
EITHER = re.compile(r"\w*(block|window|chunk|kernel|buffer|cache|segment|patch|stride)\w*_sizes?|\w*(prompt|mem)\w*")
"""Keys that end like those, and may count tokens."""
INDICES_OF_LAYERS = re.compile(r"\w*(layer|attn|attention)\w*(indices|idxs|ids)|global_attn_layers|\w*_layers")
"""Keys with a list of layers' numbers."""
OF_BACKBONE = ("out_features", "out_indices")
"""Keys with names and numbers of stages, of which a tiny model may have fewer: no task here reads them."""
RATES = re.compile(r"\w*(drop|jitter)\w*")
"""Keys with a probability, or a size of noise: none in a proof."""
LAYERDROP = re.compile(r"\w*layerdrop")


def tiny(config: PreTrainedConfig, *, fill: bool = False, longest: int | None = None) -> PreTrainedConfig:
    """Return a configuration of the same class with tiny sizes, and without dropout.

    ``fill``: give sizes that are none a value, too; the defaults of some classes are no complete model. ``longest``:
    tokens of the longest sequence that is trained: a length that none exceeds is none in a proof, either.

    Raises:
        UserError: the class does not take these sizes together.
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # warnings about sizes that are nobody's

    def made_with(positions: int, picture: int) -> PreTrainedConfig:
        made = type(config)(**_Rules(fill, longest, positions, picture).shrunk(config.to_dict(), None))
        if getattr(config, "own_head", False):  # see models/_transformers.configuration
            made.tie_word_embeddings = False
        return made

    try:
        if task_of(config) == "classification":
            small = (made_with(POSITIONS, side) for side in PICTURES)
            return next((each for each in small if _takes_pictures(each)), made_with(POSITIONS, PICTURE))
        made = [made_with(positions, PICTURE) for positions in (CROSSED, POSITIONS)]
        few, many = map(_look, made)
    except Exception as error:  # each class checks in its own way
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"the rules of proof/tiny_config.py make this {type(config).__name__} no tiny model: {reason}."
        ) from error
    found = made[few != many]  # a model with a table of positions has none beyond
    for key, _ in _unclassified(_numbers(_values(config), set())):
        if smaller := _beyond(found, key):
            found = smaller
    return found


def _beyond(config: PreTrainedConfig, key: str) -> PreTrainedConfig | None:
    """Return a tiny configuration with ``FEW`` for a number that no rule knows, if its model computes otherwise then,
    with the same weights: it counts tokens.
    """
    try:
        smaller = type(config)(**_with(config.to_dict(), key, FEW))
        same_weights = _look(smaller) == _look(config)
        return (
            smaller if same_weights and any(_differ(config, smaller, training=each) for each in (False, True)) else None
        )
    except Exception:  # it is no model
        return None


def _unclassified(numbers: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of which no rule knows whether tokens are counted with them."""
    known = [re.compile(pattern) for pattern, _ in (*LENGTHS, *SIZES)]
    known += [NUMBER_OF_LAYERS, MAXIMUM, RATES, INDICES_OF_LAYERS]
    for key, value in numbers:
        if (
            value == int(value) >= LENGTH
            and (EITHER.fullmatch(key) or not NO_LENGTHS.fullmatch(key))
            and not any(each.fullmatch(key) for each in known)
        ):
            yield key, value


def about(config: PreTrainedConfig, longest: int | None = None, unread: Sequence[str] = ()) -> list[str]:
    """Return sentences on what a tiny model of this configuration shows: the lengths that its sequences exceed; and on
    what it does not: keys without effect, rates of dropout, and numbers of which no rule knows whether tokens are
    counted with them.

    ``longest``: see ``tiny``. ``unread``: the keys without effect.
    """
    without_effect = {name.rpartition(".")[2] for name in unread}
    values_of = _values(config)
    values = dict.fromkeys(_numbers(values_of, without_effect))
    lengths = [pattern for pattern, _ in LENGTHS if "budget" not in pattern and "blocks" not in pattern]
    lengths += [MAXIMUM.pattern] * (DYNAMIC in str(values_of))
    exceeded = [
        f"{key} {value}"
        for key, value in values
        if any(re.fullmatch(pattern, key) for pattern in lengths) and 1 < value < (longest or math.inf)
    ]
    idle = [name for name in exceeded if not _is_exercised(config, name.partition(" ")[0], longest)]
    unknown = [*_unclassified(values)]
    small = {*_numbers(tiny(config, longest=longest).to_dict(), set())}
    tried = [f"{key} {value}" for key, value in unknown if (key, value) not in small]
    sentences = {
        WITHOUT_EFFECT: unread,
        "exceeded in a proof, at tiny values": [*(name for name in exceeded if name not in idle), *tried],
        "not shown to be exercised by a proof": [
            *idle,
            *(name for key, value in unknown if (name := f"{key} {value}") not in tried),
        ],
        "0 in a proof": [f"{key} {value}" for key, value in values if RATES.fullmatch(key) and value > 0],
    }
    return [f"{sentence}: {', '.join(found)}" for sentence, found in sentences.items() if found]


def _is_exercised(config: PreTrainedConfig, key: str, longest: int | None) -> bool:
    """Return whether a tiny model computes otherwise if no sequence exceeds a length."""
    try:
        without = type(config)(**_with(config.to_dict(), key, NEVER))
        return _differ(*(tiny(each, longest=longest or NEVER) for each in (config, without)))
    except Exception:  # one of both is no model
        return False


def _with(values: dict[str, Any], key: str, value: float) -> dict[str, Any]:
    """Return a configuration with another value of a key, wherever it is a number or a list of them."""
    found = {name: _with(each, key, value) if isinstance(each, dict) else each for name, each in values.items()}
    own = values.get(key)
    new = [value] * len(own) if isinstance(own, list | tuple) else value
    return found | ({key: new} if isinstance(own, int | float | list | tuple) else {})


def _differ(one: PreTrainedConfig, other: PreTrainedConfig, *, training: bool = False) -> bool:
    """Return whether two models of the same weights compute otherwise."""
    return not torch.equal(_outputs(one, training=training), _outputs(other, training=training))


def _outputs(config: Any, *, training: bool = False) -> Tensor:
    """Return the logits of a model whose weights are drawn, also those that begin as 0."""
    task = task_of(config)
    torch.manual_seed(0)
    model: Any = getattr(transformers, CLASSES[task][0]).from_config(config).train(training)
    tokens = torch.arange(LENGTH)[None] + LOWEST
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += NOISE * torch.randn_like(parameter)
        inputs = dict.fromkeys(CLASSES[task][1], tokens)
        found: Tensor = (model(example(model)) if task == "classification" else model(**inputs)).logits
    return found


def _values(config: PreTrainedConfig) -> dict[str, Any]:
    """Return a configuration's keys with the values that its model reads: some classes write others."""
    found = config.to_dict()
    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            found[key] = _values(value)
        elif key in found and isinstance(value, int | float):
            found[key] = value
    return found


def _numbers(values: Mapping[str, Any], without: set[str], outer: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number with its key; those of a dictionary by layer or kind of layer with that of the dictionary.

    ``without``: keys that are left out with all that is in them.
    """
    for key, value in values.items():
        if key in without:
            continue
        name = key if isinstance(key, str) and not str(key).isdigit() else outer
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from _numbers(each, without, name)
            elif isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e18:
                yield name, each


def _look(config: Any) -> tuple[list[torch.Size], bool]:
    """Return the shapes of a model's parameters and buffers, and whether it takes a proof's sequence, as far as that
    shows without values.
    """
    task = task_of(config)
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[task][0]).from_config(config)
        shapes = [value.shape for value in (*model.parameters(), *model.buffers())]
        try:
            if task == "language_modelling":
                model(torch.zeros(1, LENGTH, dtype=torch.long))
        except Exception:  # of a table that is no buffer, or of a model that reads values
            return shapes, False
    return shapes, True


def _takes_pictures(config: Any) -> bool:
    """Return whether a model takes pictures of its own size: strides may leave nothing of small ones."""
    try:
        with torch.device("meta"):
            model: Any = getattr(transformers, CLASSES["classification"][0]).from_config(config).eval()
        with torch.no_grad(), on_fake_tensors(model):
            model(example(model))
    except Exception:  # whatever the library makes of too few pixels
        return False
    return True


class _Rules:
    """The tiny value of each key of a configuration; ``positions``: of those in ``MAXIMUM``, ``picture``: of a side."""

    def __init__(self, fill: bool, longest: int | None, positions: int, picture: int) -> None:
        self.fill, self.longest, self.positions, self.picture = fill, longest, positions, picture

    def shrunk(self, values: dict[str, Any], outer: list[int] | None) -> dict[str, Any]:
        """Return a configuration, or a part of it in a model whose kept layers are those of ``outer``."""
        kept = _layers_kept(values, _number_of_layers(values)) or outer or []
        return {key: self.value(key, value, values, kept) for key, value in values.items() if key not in OF_BACKBONE}

    def value(self, key: str, value: Any, values: dict[str, Any], kept: list[int]) -> Any:
        if isinstance(value, dict):
            return self.dictionary(key, value, values, kept)
        if key == "attention_types" and value:  # of GPT-Neo: kinds, and how often they are repeated
            return [[value[0][0], LAYERS // len(value[0][0])]]
        if isinstance(value, list | tuple):
            if _are_layers(key, [*value], _number_of_layers(values)):
                return [new for new, number in enumerate(kept) if number in value]
            if _is_by_layer(key, value, _number_of_layers(values)):
                value = [value[number] for number in kept]
            return [self.value(key, each, values, kept) for each in value]
        if isinstance(value, float) and RATES.fullmatch(key):
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            return value
        if value is not None and (value != value or value <= 0) and not key.endswith("_token_id"):
            return value
        if re.fullmatch(r"\w+_token_(id|index)|\w+_idx", key):
            return value if value is None else 0 if key.startswith("pad") else 1
        if value is None and not self.fill:
            return value
        if NUMBER_OF_LAYERS.fullmatch(key) and value:
            return len(kept) or LAYERS
        return self.size(key, value, values)

    def dictionary(self, key: str, value: dict[str, Any], values: dict[str, Any], kept: list[int]) -> dict[Any, Any]:
        if "label" in key:
            return value
        if key.startswith("rope"):
            return self.rope(value, {"partial_rotary_factor": 1} | values)
        if value and all(str(name).isdigit() for name in value):  # by layer
            given = {int(name): each for name, each in value.items()}
            own = {new: given[number] for new, number in enumerate(kept) if number in given}
            return {
                number: {name: self.value(name, each[name], values | each, kept) for name in each}
                for number, each in own.items()
            }
        return self.shrunk(value, kept)

    def rope(self, values: dict[str, Any], outer: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of rotary positions, in a configuration with the values ``outer``; some have them by kind
        of layer.
        """
        part = values.get("partial_rotary_factor") or outer["partial_rotary_factor"] or 1
        rotated = ROTARY if outer.get("qk_rope_head_dim") else int(HEAD * part)
        found: dict[str, Any] = {}
        for key, value in values.items():
            if isinstance(value, dict):
                found[key] = self.rope(value, outer)
            elif key == ORIGINAL and value:
                found[key] = self.size(key, value, values)
            elif key == "mrope_section" and value:
                found[key] = [rotated // 4, rotated // 8, rotated // 8]
            elif key in ("short_factor", "long_factor") and value:
                found[key] = (value + value[-1:] * rotated)[: rotated // 2]
            else:
                found[key] = value
        return found

    def size(self, key: str, value: Any, values: dict[str, Any]) -> Any:
        """Return the tiny value of a number, or of None where sizes are filled in."""
        if MAXIMUM.fullmatch(key):
            dynamic = DYNAMIC in str(values)  # which reads no original length
            scaled = not dynamic and (ORIGINAL in values or any(ORIGINAL in str(each) for each in values.values()))
            return POSITIONS if scaled or self.never_exceeded(value) else self.positions
        length = next((small for pattern, small in LENGTHS if re.fullmatch(pattern, key)), None)
        if length and ("patch_size" in values or "num_random_blocks" in values):  # BigBird's needs seven of them
            length = min(length, WINDOW)
        if length is not None and value is None:
            return length
        if length is not None:
            return type(value)(POSITIONS) if self.never_exceeded(value) else type(value)(min(length, value))
        if isinstance(value, float):
            return value
        if key == "image_size" and value is not None:
            return self.picture
        if key == "patch_size" and "patch_stride" in values:  # they overlap, by as much as the padding fits
            return value
        rotary = values.get("qk_rope_head_dim")
        if key == "head_dim" and rotary and value:  # latent attention: that of a query's rotated part, or of both parts
            return ROTARY if value == rotary else HEAD + ROTARY
        small = next((small for pattern, small in SIZES if re.fullmatch(pattern, key)), value)
        if small == value or small is None or value is None:
            return small
        if small == GROUPS and "head" in key:  # one for all query heads, one for each, or in between
            heads = next((each for name, each in values.items() if re.fullmatch(QUERY_HEADS, name)), None)
            return 1 if value == 1 else HEADS if value == heads else GROUPS
        if EXPERTS_PER_TOKEN.fullmatch(key) and value > _experts(values):  # which no process computes
            return EXPERTS + 1
        if key == "num_kv_shared_layers" and value == _number_of_layers(values):
            return LAYERS
        if key == "attention_hidden_size" or (key == "attention_head_dim" and "attention_hidden_size" in values):
            width = WIDTH * max(1, values["attention_hidden_size"] // values["hidden_size"])
            return width if key == "attention_hidden_size" else width // HEADS
        if re.fullmatch(QUERY_HEADS, key) and "expand" in values and "state_size" in values:  # heads of Mamba's width
            return 2 * HEADS
        return min(small, value) if small <= GROUPS else small

    def never_exceeded(self, value: Any) -> bool:
        return self.longest is not None and value is not None and value >= self.longest


def _experts(values: dict[str, Any]) -> float:
    """Return the number of experts; infinite if no key has it."""
    pattern = next(pattern for pattern, small in SIZES if small == EXPERTS and "experts" in pattern)
    return next((value for key, value in values.items() if re.fullmatch(pattern, key) and value), math.inf)


def _number_of_layers(values: dict[str, Any]) -> int | None:
    own = (value for key, value in values.items() if NUMBER_OF_LAYERS.fullmatch(key) and isinstance(value, int))
    return next(own, None)


def _are_layers(key: str, value: list[Any], layers: int | None) -> bool:
    """Return whether a list has the numbers of some layers."""
    if not layers or not INDICES_OF_LAYERS.fullmatch(key) or not all(type(each) is int for each in value):
        return False
    return value == sorted({*value}) and all(0 <= each < layers for each in value)


def _is_by_layer(key: str, value: Any, layers: int | None) -> bool:
    """Return whether a list has something for each layer."""
    if not isinstance(value, list | tuple) or len(value) != layers:
        return False
    is_range = layers == 2 and all(isinstance(each, float) for each in value)
    return not is_range or "layer" in key or "pattern" in key


def _layers_kept(values: dict[str, Any], layers: int | None) -> list[int]:
    """Return the number of the layer that each tiny layer is like: each kind that what is given per layer distinguishes
    has as many as the others, and the kinds take turns.
    """
    if not layers:
        return []
    indices = [value for key, value in values.items() if isinstance(value, list) and _are_layers(key, value, layers)]
    lists = [value for key, value in values.items() if _is_by_layer(key, value, layers) and value not in indices]
    other = {int(number): repr(each) for number, each in (values.get("per_layer_config") or {}).items()}
    kinds = [
        repr([other.get(number), *(each[number] for each in lists), *(number in each for each in indices)])
        for number in range(layers)
    ]
    count = min(max(LAYERS, len({*kinds})), MOST_LAYERS)
    # The first one of each kind, then the second one of each, and so on.
    by_turns = sorted(range(layers), key=lambda number: (kinds[:number].count(kinds[number]), number))
    kept = by_turns[:count]
    return [kept[number % len(kept)] for number in range(count)]


def write(
    config: Any, folder: Path, tensor_parts: int = 1, longest: int | None = None, unread: Iterable[str] = ()
) -> None:
    """Write the tiny configuration into a folder, as config.json, without the keys without effect (``unread``).

    ``tensor_parts``: largest degree of tensor parallelism. Fewer key and value heads than that are one, so that they
    are fewer than the ranks of a proof, too. ``longest``: see ``tiny``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not config.is_heterogeneous and getattr(config, "num_key_value_heads", None) in range(1, tensor_parts):
        config.num_key_value_heads = 1
    made = tiny(config, longest=longest)
    for name in unread:
        place: Any = made
        *parts, key = name.split(".")
        for part in parts:
            place = place[part] if isinstance(place, dict) else getattr(place, part)
        (place if isinstance(place, dict) else vars(place)).pop(key, None)
    made.save_pretrained(folder)


def layerdrop(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the keys with a part of layers, more than 0, that training leaves out at random."""
    return tuple(key for key, value in floats(config.to_dict(), LAYERDROP) if value > 0)


def task_of(config: PreTrainedConfig) -> str:
    """Return the task that a type of model has here: what the library has a class for."""
    if config.is_encoder_decoder:
        return "summarization"
    pictures = config.model_type in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return "classification" if pictures else "language_modelling"


def is_of_another_task(named: str, trained: str) -> bool:
    """Return whether the library has a class of that name with another head than the class that is trained."""
    without_head = repr([*modeling_auto.MODEL_MAPPING_NAMES.values()])
    return named != trained and hasattr(transformers, named) and repr(named) not in without_head
