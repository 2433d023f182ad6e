"""Models of the transformers library (huggingface.co/docs/transformers), from the folder of their config.json."""

import dataclasses
import inspect
import logging as standard_logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters
from transformers.utils import logging

from shardlab.errors import UserError
from shardlab.files import COMMAND
from shardlab.models._library_chain import as_chain, example, key_of_channels, on_fake_tensors
from shardlab.models._positions import Largest, follow
from shardlab.models._sequence import largest_of
from shardlab.models.declared import layer_lists
from shardlab.patches.torch_internals import around_forward
from shardlab.patches.transformers_values import without_values
from shardlab.settings.pretrained import check_plain, read_keys
from shardlab.settings.types import CAUSAL, DECLARED

standard_logging.getLogger("torch._subclasses.fake_tensor").setLevel(standard_logging.CRITICAL)  # it also raises them

CLASSES = {
    **dict.fromkeys(CAUSAL, ("AutoModelForCausalLM", ("input_ids",))),
    "summarization": ("AutoModelForSeq2SeqLM", ("input_ids", "decoder_input_ids")),
    "classification": ("AutoModelForImageClassification", ("pixel_values",)),
}
"""Task: the library's class, and its names of the task's inputs."""
ROUTER_LOSS = "output_router_logits"
"""Key of a config.json with which the library adds a loss of its experts' load to that of the tokens."""
OURS = {"channels": "num_channels", "classes": "num_labels"}
"""Names in a workload's ``shape``: the library's."""
DECIDED = {
    **dict.fromkeys(("dtype", "torch_dtype"), "weights have the type of the recipe; remove it, or set recipe.dtype"),
    "model_type": "it is that of the folder's config.json; remove it, or name another folder",
    "architectures": "the task decides on the class; remove it",
    "attn_implementation": "strategies choose how attention is computed; remove it",
}
"""Keys that a workload cannot set: why, and what would work."""


def create(task: str, folder: str, args: dict[str, Any], *, pretrained: bool) -> nn.Module:
    """Create a folder's model, called with the task's inputs and returning logits; dropout is that of its config.

    ``args`` override its config.json. If ``pretrained`` it has the folder's weights, all of them; only the head of a
    classifier of another number of classes is drawn, which is printed as a note. In float32.

    Raises:
        UserError: the folder is not a model of the task, or has other weights than its config.json describes; or see
            ``configuration``.
    """
    if task not in CLASSES:
        raise UserError(f"task {task} has no transformers models; tasks that do: {', '.join(CLASSES)}.")
    name, inputs = CLASSES[task]
    _check_args(args)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if pretrained:
        check_plain(Path(folder))
    config, unknown = configuration(folder, args)
    auto = getattr(transformers, name)
    if type(config) not in auto._model_mapping:
        raise UserError(
            f"{folder} cannot be read as a model for {task} ({name}): the library has none of type "
            f"{config.model_type}; choose another task, or name another folder."
        )
    _check_known(folder, config, unknown)
    config.use_cache = False
    quantized = hasattr(config, "quantization_config")  # which loading may remove
    loaded: dict[str, Any] = {}
    try:
        if pretrained:
            model, loaded = auto.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                # Otherwise the library names weights of another shape in its log alone.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        else:
            model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # each class checks in its own way
        reason = _reason(error)
        remedy = "correct its config.json or the keys under `model:`"
        if isinstance(error, OSError):
            remedy = "copy that file into the folder"
        elif isinstance(error, SafetensorError):
            reason, remedy = f"its weights are no whole file of safetensors ({reason})", "copy them again"
        raise UserError(
            f"{folder} cannot be read as a model for {task} ({name}): {reason}; {remedy}, or name a folder written by "
            "save_pretrained."
        ) from error
    if getattr(config, "own_head", False) and not pretrained:
        head = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach().clone())
    adds_loss = hasattr(sys.modules[type(model).__module__], "load_balancing_loss_func")
    if adds_loss and getattr(config.get_text_config(), ROUTER_LOSS, False):
        raise UserError(
            f"{folder}: its config.json asks for the router's auxiliary loss ({ROUTER_LOSS}), which no strategy "
            f"trains; set {ROUTER_LOSS} to false, there or under `model:` of the workload's size."
        )
    if pretrained:
        if quantized:
            print(f"note: config.json of {folder} names a quantization; what the library reads trains in float32")
        types = {value.dtype for value in model.parameters()}
        if types != {torch.float32} and types <= {torch.float32, torch.bfloat16, torch.float16}:
            model.float()  # what is dequantized is in bfloat16
        _check_weights(folder, model, loaded, task)
    # In its class, not by a wrapper around the model: the weights keep the names that the library knows.
    largest, lists = Largest(), layer_lists(model)
    follow(model, [layer for name in lists for layer in model.get_submodule(name).children()], largest)
    around_forward(model, partial(_logits, inputs, largest))
    if task in DECLARED and len(lists) == 1:
        as_chain(model, lists[0])
    return model  # type: ignore[no-any-return]


def _check_args(args: Mapping[str, Any]) -> None:
    """Check that a workload sets no key that is decided elsewhere, and none by two names."""
    if decided := DECIDED.keys() & args.keys():
        raise UserError(f"{min(decided)} under `model:` has no effect: {DECIDED[min(decided)]}.")
    for ours, theirs in OURS.items():
        if {ours, theirs} <= args.keys():
            raise UserError(f"{theirs} under `model:` is {ours} under `shape:`, which is there, too; write it once.")


def _check_known(folder: str, config: PreTrainedConfig, unknown: dict[str, Any]) -> None:
    """Check that each key of a workload has an effect; ``unknown``: those without."""
    if '"image_size"' not in config.to_json_string(use_diff=False):
        unknown.pop("image_size", None)  # of the data: convolutions take pictures of any size
    if unknown:
        key = min(unknown)
        kind = type(config).__name__
        if _takes(type(config), key):
            raise UserError(f"{folder}: {kind} computes {key} from other keys, so it has no effect; set those.")
        named = next((ours for ours, theirs in OURS.items() if theirs == key), key)
        fields = [field.name for field in dataclasses.fields(config)] if named == key else []
        close = get_close_matches(key, fields, 1, CLOSE_NUMBER)
        meant = f"write {close[0]}, or " if close else ""
        raise UserError(
            f"{folder}: {kind} takes no key {named}, which the workload's file has under `model:` or `shape:`; "
            f"{meant}remove it there, or use a model that has it."
        )


def check(task: str, folder: str, args: dict[str, Any]) -> type[nn.Module]:
    """Check that a folder's config.json describes a model of its true sizes that runs, without memory for them; return
    its class.

    Raises:
        UserError: see ``create``; or shapes do not fit together in a forward pass.
    """
    with torch.device("meta"):
        model = create(task, folder, args, pretrained=False).eval()
    try:
        with torch.no_grad(), without_values(), on_fake_tensors(model):
            model(*[example(model)] * len(CLASSES[task][1]))
    except Exception as error:  # of fake tensors, too, where the library reads values: that decides nothing
        if type(error) in (RuntimeError, ValueError) and OF_SHAPES.search(str(error)):
            raise UserError(
                f"{folder}: the library cannot run the {type(model).__name__} that its config.json and the keys under "
                f"`model:` describe: {_reason(error)}; correct the sizes."
            ) from error
    return type(model)


OF_SHAPES = re.compile("size|shape|dimension|range")
"""In errors of shapes that do not fit together."""
SHOWN = 3
"""Names in a sentence."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of weights, by their names in the safetensors format."""
CONSTANTS = re.compile(r"(.*\.)?(position_ids|masked_bias)")
"""Buffers that earlier versions of the library saved."""


def _check_weights(folder: str, model: Any, loaded: Mapping[str, Any], task: str) -> None:
    """Check what the library reports of loading a folder's weights; print a note if a classifier's head is new."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(found) for name, found, _ in loaded["mismatched_keys"]}
    missing = {*loaded["missing_keys"]}
    unknown = {name for name in loaded["unexpected_keys"] if not CONSTANTS.fullmatch(name)}
    new = set()
    if task == "classification":
        inside, labels = f"{model.base_model_prefix}.", model.config.num_labels
        outside = [name for name in missing | theirs.keys() if not name.startswith(inside)]
        new = {name for name in outside if shapes[name] == (labels, *theirs.get(name, shapes[name])[1:])}
        unknown = {name for name in unknown if "pooler." not in name}  # of the task before
    others = {f"{name} is {theirs[name]}, in the model {shapes[name]}" for name in theirs.keys() - new}
    kinds = {"missing": missing - new, "unknown to the model": unknown, "of another shape": others}
    if wrong := [f"{len(names)} {kind} ({_first(names)})" for kind, names in kinds.items() if names]:
        kind = type(model).__name__
        raise UserError(
            f"the weights in {folder} are not those of the {kind} that its config.json and the keys under `model:` "
            f"describe ({len(shapes)} tensors): {', '.join(wrong)}; correct the sizes, name a folder that "
            f"{kind}.save_pretrained wrote, or draw new weights with `pretrained: false` under `model:`."
        )
    if packed := _of_other_types(folder, model):
        raise UserError(
            f"the weights in {folder} are no floating-point numbers of 16 bits or more ({_first(packed)}), which no "
            "strategy trains; name a folder of others, or draw new ones with `pretrained: false` under `model:`."
        )
    if infinite := {name for name, value in model.named_parameters() if not value.isfinite().all()}:
        raise UserError(f"the weights in {folder} are not finite ({_first(infinite)}); make that folder again.")
    every = dict(model.named_parameters(remove_duplicate=False))
    own_head = model.get_output_embeddings().weight if getattr(model.config, "own_head", False) else None
    if own_head is not None and own_head is model.get_input_embeddings().weight:
        raise UserError(
            f"{folder}: its config.json has tie_word_embeddings false, and the output layer in its weights equals the "
            "embeddings, to which the library then ties it; remove lm_head.weight from the weights."
        )
    for tied, to in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        if tied in every and every[tied] is not own_head and every[tied] is not every.get(to, every[tied]):
            unties = not _always_ties(model.config) or every[tied] is model.get_output_embeddings().weight
            raise UserError(
                f"{folder}: {type(model).__name__} ties {tied} to {to}, and its weights have other values for each; "
                f"{'set tie_word_embeddings to false, or ' * unties}remove {tied} from the weights."
            )
    if new:
        print(f"note: {_first(new)} of {folder} are drawn anew, for the {model.config.num_labels} classes of the data")


def _of_other_types(folder: str, model: nn.Module) -> set[str]:
    """Return the parameters that a model has in another type than float32, or files in one that is none of weights."""
    found = {name for name, value in model.named_parameters() if value.dtype != torch.float32}
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return found | {name for name, kind in _stored(Path(folder)).items() if name in names and kind not in FLOATS}


def _stored(folder: Path) -> dict[str, str]:
    """Return the names in a folder's files of weights, each with its type there."""
    found: dict[str, str] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    return found


def _first(names: set[str]) -> str:
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more


def configuration(folder: str | Path, args: Mapping[str, Any]) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """Return a folder's configuration with ``args`` in place of its keys, as if its file had them; and those of them
    that have no effect.

    With another number of layers, what it has per layer is cut, or begins again.

    Raises:
        UserError: its config.json is missing, or not one of the installed library; or a key of it has no effect and is
            close to one that has; or ``args`` do not fit it.
    """
    read = partial(transformers.AutoConfig.from_pretrained, folder, local_files_only=True, trust_remote_code=False)
    file = read_keys(Path(folder))
    try:
        unchanged = read()
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # further warnings are of defaults, not of the file
        misspelled = [*_misspelled(unchanged, file)]
    except Exception as error:  # each class checks in its own way
        raise UserError(
            f"{folder}/config.json is not one of transformers {transformers.__version__}: {_reason(error)}; "
            "correct it, or name a folder written by save_pretrained."
        ) from error
    for key, meant in misspelled:
        raise UserError(
            f"{folder}/config.json: {key} has no effect in {type(unchanged).__name__}; did you mean {meant}? Write "
            f"that, or remove {key}."
        )
    theirs = _theirs(args, unchanged)
    try:
        config, unknown = _changed(unchanged, file, theirs) if args else (unchanged, {})
    except Exception as error:
        named = ", ".join(f"{key} {value}" for key, value in theirs.items())
        raise UserError(
            f"{folder}: {type(unchanged).__name__} does not take {named}: {_reason(error)}; correct `model:` or "
            "`shape:` in the workload's file, or write them into config.json."
        ) from error
    written = file | theirs
    if written.get("tie_word_embeddings") is False and _always_ties(config):
        # T5's class takes the key for a scale alone; the library ties the embeddings, and the head unless it is loaded.
        config.tie_word_embeddings = True
        config.own_head = _has_head(Path(folder))
    for key in POSITIONS:
        if args.get(key) and not any(isinstance(value, dict) for value in args[key].values()):  # of kinds of layers
            own: dict[str, Any] = {"rope_theta": file.get("rope_theta"), **args, **args[key]}
            if own["rope_theta"] is None:
                raise UserError(f"{folder}: {key} under `model:` takes the place of all its keys; add rope_theta.")
    return config, unknown


def _changed(
    unchanged: PreTrainedConfig, file: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """Return the configuration of a ``file`` with other keys, and those of them that have no effect."""
    kind: Any = type(unchanged)
    wanted = {key: value for key, value in theirs.items() if _takes(kind, key)}
    layers: Any = wanted.get("num_hidden_layers")
    before = getattr(unchanged, "num_hidden_layers", 1)

    def by_layer(values: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return what there is for each layer, for the other number of them."""
        if not isinstance(layers, int) or before <= 1:
            return {}
        lists = {key: each for key, each in values.items() if isinstance(each, list) and len(each) == before}
        return {key: [each[number % before] for number in range(layers)] for key, each in lists.items()}

    def made(keys: Mapping[str, Any]) -> PreTrainedConfig:
        new = {kind.attribute_map.get(key, key): value for key, value in keys.items()}
        values = {kind.attribute_map.get(key, key): value for key, value in file.items()}
        if any(key in new for key in POSITIONS):
            values = {key: value for key, value in values.items() if key not in POSITIONS}
        values |= by_layer(values)
        for key, value in new.items():
            part = isinstance(getattr(unchanged, key, None), PreTrainedConfig) and isinstance(value, dict)
            values[key] = {**(file.get(key) or {}), **value} if part else value
        # Infinity is an object in a file; and the class adds keys to dictionaries in it.
        found: PreTrainedConfig = kind.from_dict(kind._decode_special_floats(deepcopy(values)))
        for key, value in by_layer(vars(found)).items():  # what the class made, whatever their number is
            if key not in new:
                setattr(found, key, value)
        return found

    config = made(wanted)
    idle = {
        key: value
        for key, value in wanted.items()
        if isinstance(value, int | float | str)
        and value not in (file.get(key), getattr(config, key, None))
        and made({name: each for name, each in wanted.items() if name != key}).to_dict() == config.to_dict()
    }
    return config, {key: value for key, value in theirs.items() if key not in wanted} | idle


def _takes(kind: Any, key: str) -> bool:
    """Return whether a key is a field of a class of configurations, or something that its code asks for."""
    names = {field.name for field in dataclasses.fields(kind)} | kind.attribute_map.keys()
    return key in names or hasattr(kind, key) or key.endswith("_token_id") or _is_read(key, frozenset([kind]))


def _always_ties(config: Any) -> bool:
    return bool(type(config)(tie_word_embeddings=False).tie_word_embeddings)


def _has_head(folder: Path) -> bool:
    """Return whether a folder's weights have an output layer, as published ones do; also if there are none to read."""
    try:
        names = _stored(folder)
    except SafetensorError:  # which loading them says
        return True
    return not names or any(name.endswith("lm_head.weight") for name in names)


def _theirs(args: Mapping[str, Any], config: PreTrainedConfig) -> dict[str, Any]:
    """Return ``args`` by the library's names; some configurations have a picture's two sides."""
    ours = OURS | {"channels": key_of_channels(partial(hasattr, config)) or OURS["channels"]}
    found = {ours.get(key, key): value for key, value in args.items()}
    own = getattr(config, "image_size", None)
    if isinstance(own, list | tuple) and isinstance(found.get("image_size"), int):
        found["image_size"] = [found["image_size"]] * len(own)
    return found


def _written(folder: str | Path, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a folder's config.json with ``args`` over them."""
    return read_keys(Path(folder)) | {OURS.get(key, key): value for key, value in args.items()}


EARLIER = ("rope_scaling", "rope_theta", "partial_rotary_factor")
"""Keys of published files that the library makes ``rope_parameters`` of."""
CLOSE_NUMBER, CLOSE = 0.7, 0.92
"""How alike a key is to the one that was meant (difflib's ratio): a number may be a size by another name, as
num_kv_heads is; published files have other values for which no model of this library asks, like classif_dropout.
"""
IN_POSITIONS = 0.85
"""The same for keys of rotary positions, of which the library has a list."""


WITHOUT_EFFECT = "keys of config.json without effect in training, unknown to its class and read by no code of the model"
"""What ``unread`` returns, in words."""


def unread(task: str, folder: str, args: Mapping[str, Any]) -> list[str]:
    """Return the keys of a folder's config.json, with ``args`` over them, that its class has no field for and that no
    code of the model asks for: the library takes any key, as an attribute.
    """
    with torch.device("meta"):
        model: Any = create(task, folder, {**args}, pretrained=False)
    kinds = frozenset(map(type, (*model.modules(), model.config, *vars(model.config).values())))
    keys = _without_field(model.config, _written(folder, args))
    return [f"{place}{key}" for place, key in keys if not _is_read(key, kinds)]


def _is_read(key: str, kinds: frozenset[type]) -> bool:
    """Return whether the code of the library's classes asks for a key."""
    pattern = rf"(config|self)\.{re.escape(key)}\b|[\"']{re.escape(key)}[\"']"
    return bool(re.search(pattern, _code(kinds)))


@cache
def _code(kinds: frozenset[type]) -> str:
    modules = {base.__module__ for kind in kinds for base in kind.__mro__}
    return "\n".join(inspect.getsource(sys.modules[name]) for name in modules if name.startswith(READING))


READING = ("transformers.models.", "transformers.modeling_rope_utils")
"""Modules whose code asks for keys of their models' configurations."""
READ_OF_ANY = ("is_causal", "initializer_range", "initializer_factor", "init_std", "quantization_config", "auto_map")
"""Begins of keys that the library reads of any configuration, or that say nothing of a model."""


def _without_field(config: PreTrainedConfig, values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a config.json that their class has no field for, and where they are."""
    for key, value in values.items():
        own = vars(config).get(key)
        if isinstance(value, dict) and isinstance(own, PreTrainedConfig):
            yield from _without_field(own, value, f"{place}{key}.")
        elif isinstance(value, dict) and key in POSITIONS:
            yield from ((where, unknown) for where, unknown, _ in _unknown_of_positions(value, f"{place}{key}."))
        elif _is_ignored(config, key) and value is not None and not key.startswith(("_", *READ_OF_ANY)):
            yield place, key


POSITIONS = ("rope_scaling", "rope_parameters")
"""Keys with a dictionary of rotary positions."""


def _unknown_of_positions(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str, set[str]]]:
    """Yield the keys of rotary positions that the library does not know, where they are, and which of its own are not
    there; some models have such a dictionary for each kind of layers.
    """
    known = RopeParameters.__annotations__.keys()
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _unknown_of_positions(value, f"{place}{key}.")
        elif key not in known:
            yield place, key, known - values.keys()


def _is_ignored(config: PreTrainedConfig, key: str) -> bool:
    """Return whether a key is no field of a configuration and nothing that its class asks for, but an attribute that
    any other could be.
    """
    return key in vars(config) and not _takes(type(config), key)


def _misspelled(config: PreTrainedConfig, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a config.json that have no effect, each with the key that was probably meant: it is not written
    and has another value.

    Published files have many keys without effect: of other versions of the library and of the models' own code.
    """
    kind = type(config)
    names = {field.name for field in dataclasses.fields(kind)} | kind.attribute_map.keys()
    written = {kind.attribute_map.get(key, key) for key in values}
    free = [name for name in names if kind.attribute_map.get(name, name) not in written]
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(vars(config).get(key), PreTrainedConfig):
            yield from _misspelled(vars(config)[key], value)
        if isinstance(value, dict) and key in POSITIONS:
            for _, wrong, absent in _unknown_of_positions(value):
                yield from ((wrong, meant) for meant in get_close_matches(wrong, absent, n=1, cutoff=IN_POSITIONS))
        if not _is_ignored(config, key):
            continue
        cutoff = CLOSE_NUMBER if type(value) is int else CLOSE
        earlier = [name for name in EARLIER if "rope_parameters" in names and name not in values]
        close = get_close_matches(key, free, n=1, cutoff=cutoff) + get_close_matches(key, earlier, n=1, cutoff=CLOSE)
        meant = next(iter(close), None)
        default = vars(config).get(kind.attribute_map.get(meant, meant)) if meant else None
        # extra_pos_embeddings: 2 of published files does not mean tie_word_embeddings.
        if meant and default != value and (default is None or isinstance(default, bool) == isinstance(value, bool)):
            yield key, meant


def _reason(error: Exception) -> str:
    """Return what the library says, in one line, and the line of it that failed, unless that has words of its own."""
    if isinstance(error, StrictDataclassError) and isinstance(error.__cause__, Exception):
        return _reason(error.__cause__)
    if "trust_remote_code" in str(error):
        return "it needs custom code, which is never run; write the model as a file in scripts/shardlab/models"
    lines = str(error).strip().splitlines() or [""]
    said = lines[0].rstrip(".:") if lines[0] and not isinstance(error, KeyError) else f"{type(error).__name__} {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    told = last.line is None or last.line.startswith("raise") or isinstance(error, OSError)
    return said if told or Path(last.filename).is_relative_to(COMMAND) else f"{said} at `{last.line}`"


def floats(values: Mapping[str, Any], keys: re.Pattern[str]) -> Iterator[tuple[str, float]]:
    """Yield those of a configuration's ``keys`` with a float, also of its parts."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from floats(value, keys)
        elif isinstance(value, float) and keys.fullmatch(key):
            yield key, value


def _logits(names: tuple[str, ...], largest: Largest, forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """A forward that takes the task's inputs by position, and gives the logits alone.

    ``of_whole``: what ``largest`` has for a part of the positions (parallel/library_context.py).
    """

    def logits(
        model: nn.Module,
        *inputs: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        of_whole: tuple[Tensor | None, bool] = (None, False),
        **options: Tensor,
    ) -> Tensor:
        named: dict[str, Any] = dict(zip(names, inputs, strict=True)) | options
        if positions is not None:  # without a mask, the library takes those that begin again for another document
            named["position_ids"] = positions
            of_whole = largest_of(positions), True
        if mask is not None:  # some models subtract it
            named["attention_mask"] = mask.long() if mask.dtype == torch.bool and mask.dim() == 2 else mask
        largest.of_tokens, largest.of_documents = of_whole
        try:
            outputs = forward(model, **named, return_dict=True)
        finally:
            largest.of_tokens = None
        if not hasattr(outputs, "logits"):
            kind = type(model).__name__
            raise UserError(f"the {kind} of transformers {transformers.__version__} returns no logits to train.")
        return outputs.logits  # type: ignore[no-any-return]

    return logits
