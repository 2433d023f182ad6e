"""Models of the transformers library (huggingface.co/docs/transformers), from the folder of their config.json."""

import logging as standard_logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.utils import logging

from shardlab.errors import UserError, remedy
from shardlab.models._library_chain import as_chain
from shardlab.models._positions import Largest, follow
from shardlab.models._sequence import largest_of
from shardlab.models.declared import layer_lists
from shardlab.patches.torch_modules import around_forward
from shardlab.settings.types import CAUSAL, DECLARED

# The library imports torchao, which warns of kernels for other machines; and PyTorch of how torchao declares its types.
for noisy in ("torchao", "torch.utils._pytree"):
    standard_logging.getLogger(noisy).setLevel(standard_logging.ERROR)

CLASSES = {
    **dict.fromkeys(CAUSAL, ("AutoModelForCausalLM", ("input_ids",))),
    "summarization": ("AutoModelForSeq2SeqLM", ("input_ids", "decoder_input_ids")),
    "classification": ("AutoModelForImageClassification", ("pixel_values",)),
}
"""Task: the library's class, and its names of the task's inputs."""
EXPERTS_PER_TOKEN = re.compile(r"(num_)?(experts_per_(tok|token)|selected_experts)|moe_k|(moe_)?top_?k|top_k_experts")
ROUTER_LOSS = "output_router_logits"
"""Key of a config.json with which the library adds a loss of its experts' load to that of the tokens."""
OURS = {"channels": "num_channels", "classes": "num_labels"}
"""Names in a workload's ``shape``: the library's."""


def create(task: str, folder: str, args: dict[str, Any], *, pretrained: bool) -> nn.Module:
    """Create a folder's model, called with the task's inputs and returning logits; dropout is that of its config.

    ``args`` override its config.json. If ``pretrained`` it has the folder's weights; weights that are missing there, or
    have another shape (the head of another number of classes), are initialized. In float32.

    Raises:
        UserError: the folder is not a model of the task, or the workload changes a key that its config does not have.
    """
    if task not in CLASSES:
        raise UserError(f"task {task} has no transformers models; tasks that do: {', '.join(CLASSES)}.")
    name, inputs = CLASSES[task]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not (Path(folder) / "config.json").exists():
        raise UserError(
            f"{folder}/config.json is missing; {remedy('download it from the hub', f'{folder}/download.json')}."
        )
    try:
        config, unknown = configuration(folder, args)
        if unknown:
            raise UserError(
                f"{folder}: its config.json ({type(config).__name__}) has no key {min(unknown)}; "
                "remove it from the workload's file."
            )
        if getattr(config.get_text_config(), ROUTER_LOSS, False):
            raise UserError(
                f"{folder}: its config.json asks for the router's auxiliary loss ({ROUTER_LOSS}), which no strategy "
                f"trains; set {ROUTER_LOSS} to false, there or under `model:` of the workload's size."
            )
        config.use_cache = False
        auto = getattr(transformers, name)
        if pretrained:
            model = auto.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
            )
        else:
            model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        if "trust_remote_code" in str(error):
            reason = "it needs custom code, which is never run; write the model as a file in scripts/shardlab/models"
        raise UserError(
            f"{folder} cannot be read as a model for {task} ({name}): {reason}; name one written by save_pretrained."
        ) from error
    # In its class, not by a wrapper around the model: the weights keep the names that the library knows.
    largest, lists = Largest(), layer_lists(model)
    follow(model, [layer for name in lists for layer in model.get_submodule(name).children()], largest)
    around_forward(model, partial(_logits, inputs, largest))
    if task in DECLARED and len(lists) == 1:
        as_chain(model, lists[0])
    return model  # type: ignore[no-any-return]


def configuration(folder: str | Path, args: Mapping[str, Any]) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """Return a folder's configuration with ``args`` over its keys, and those of them that it does not have.

    With another number of layers, what it has per layer is cut, or begins again: the library leaves that as it is, and
    then refuses to save it.
    """
    read = partial(transformers.AutoConfig.from_pretrained, folder, local_files_only=True, trust_remote_code=False)
    config, unknown = read(return_unused_kwargs=True, **{OURS.get(key, key): value for key, value in args.items()})
    layers, before = (getattr(each, "num_hidden_layers", 0) for each in (config, read() if args else config))
    if layers != before and before > 1:
        for key, value in [*vars(config).items()]:
            if isinstance(value, list) and len(value) == before and key not in args:
                setattr(config, key, [value[number % before] for number in range(layers)])
    return config, unknown


def experts_per_token(folder: str, args: Mapping[str, Any]) -> int:
    """Return how many of a layer's experts each token chooses, by the names that the library's configurations have."""
    keys = configuration(folder, args)[0].get_text_config().to_dict().items()
    return next(value for key, value in keys if EXPERTS_PER_TOKEN.fullmatch(key) and isinstance(value, int))


def _logits(names: tuple[str, ...], largest: Largest, forward: Callable[..., Any]) -> Callable[..., Tensor]:
    """A forward that takes the task's inputs by position, and gives the logits alone.

    ``of_whole``: what ``largest`` has for a part of the positions (parallel/library_context.py).
    """

    def logits(
        model: nn.Module,
        *inputs: Tensor,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        of_whole: tuple[Tensor | None, int | None] = (None, None),
        **options: Tensor,
    ) -> Tensor:
        named: dict[str, Any] = dict(zip(names, inputs, strict=True)) | options
        if positions is not None:  # without a mask, the library takes those that begin again for another document
            named["position_ids"] = positions
            of_whole = largest_of(positions), positions.shape[1]
        if mask is not None:
            named["attention_mask"] = mask
        largest.of_tokens, largest.longest = of_whole
        try:
            outputs: Tensor = forward(model, **named, return_dict=True).logits
        finally:
            largest.of_tokens = None
        return outputs

    return logits
