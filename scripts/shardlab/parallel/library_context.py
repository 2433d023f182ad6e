"""Context parallelism of transformers models, through the library's registries of attentions and of masks.

A mask is made by the model's own rule (causal, windows, chunks) of the positions that this rank has in the whole
sequence, or in the documents of a row, and each layer attends by the library's own functions, to keys and values that
come from all ranks. What the library calls its attention with (softcap, sinks) stays. The ring knows causal attention
alone.
"""

import copy
import logging
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from shardlab.errors import UserError
from shardlab.models._chain import INPUTS
from shardlab.models._library_chain import on_fake_tensors
from shardlab.models._sequence import POSITIONS, SequenceSplit, documents_of, largest_of, same_document
from shardlab.models.declared import arguments, layer_lists
from shardlab.parallel.context import all_gather_single_autograd, to_heads, to_positions
from shardlab.parallel.ring import ring
from shardlab.patches.torch_internals import around_forward
from shardlab.settings.types import Run

log = logging.getLogger(__name__)

MORE_THAN_A_MASK = ("softcap", "s_aux", "position_bias")
"""Arguments of an attention that the library's fused function does not take."""
NO_RING, INSTEAD = "context: ring is for causal attention alone, and", "set context to gather or ulysses."
ROWS = 256
"""Rows of a mask that are looked at together."""
LENGTHS = (6, 10)
"""Lengths of sequences that are compared."""
Place = tuple[str, int]
"""File and line."""


def check(run: Run, model: Any) -> None:
    """Check that a model attends through the registries, at positions that it is told.

    Raises:
        UserError: it does not, or the algorithm or the number of ranks do not fit.
    """
    name, parts = run.model.name, run.mesh.parts("sequence") * run.mesh.tensor_parts
    if not getattr(model, "_supports_attention_backend", False):
        raise UserError(
            f"the library does not declare that all layers of model {name} attend through its registry of attentions "
            "(_supports_attention_backend), as recurrent ones, for example, do not, so its sequences cannot be split; "
            "leave out cp."
        )
    if "position_ids" not in arguments(model):
        raise UserError(f"model {name} takes no position_ids, so its sequences cannot be split; leave out cp.")
    config = model.config.get_text_config()
    layers = config.per_layer_config if config.is_heterogeneous else [config]
    heads = {getattr(layer, "num_attention_heads", None) for layer in layers}
    if run.options.context == "ulysses" and (
        uneven := [each for each in heads if isinstance(each, int) and each % parts]
    ):
        raise UserError(
            f"context: ulysses splits heads, but cp x tp {parts} does not divide the {uneven[0]} of model {name}; set "
            "context to gather."
        )


def apply(
    model: nn.Module, name: str, split: SequenceSplit, group: dist.ProcessGroup, length: int | None = None
) -> None:
    """Make a model, or a pipeline's part of one, attend to all positions from those that this rank has.

    ``length``: that of the sequences, before they are filled up to be divided.
    """
    kind = f"shardlab_{name}"
    whole = name == "ulysses"
    attend = {"gather": _gathered, "ulysses": _ulysses, "ring": _ring}[name]
    row = SimpleNamespace(positions=None)  # of the documents of the forward pass that is making its masks

    # By the library's names, under which some models give them.
    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        return attend(_Call(module, query, key, value, attention_mask, options), split, group)

    def mask(batch_size: int, q_length: int, kv_length: int, *, mask_function: Any, **options: Any) -> Tensor | None:
        device, positions = options.get("device", "cpu"), row.positions
        keys = torch.arange(q_length * split.ranks, device=device)
        queries = keys if whole else split.positions(q_length, keys.device)
        rows = torch.arange(batch_size, device=device).view(-1, 1, 1, 1)
        heads = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
        if name == "ring":  # some rows at a time: the whole mask is what a ring avoids
            for some in queries.split(ROWS):
                allowed = mask_function(rows, heads, some.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
                if not torch.equal(allowed[0, 0], keys <= some.unsqueeze(1)):
                    raise UserError(f"{NO_RING} its layers have windows, chunks or other masks; {INSTEAD}")
            return None if positions is None else documents_of(positions)[:, None, None, :]
        if positions is None:
            allowed = mask_function(rows, heads, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
        else:
            documents = documents_of(positions)
            allowed = mask_function(rows, heads, positions[:, None, queries, None], positions[:, None, None, :])
            allowed = allowed & same_document(documents[:, queries], documents)
        return allowed.expand(batch_size, -1, len(queries), len(keys))

    AttentionInterface.register(kind, attention)
    AttentionMaskInterface.register(kind, mask)
    for module in model.modules():
        if (config := getattr(module, "config", None)) is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = kind
    if places := _counting_places(model):
        for layers in layer_lists(model):
            for layer in model.get_submodule(layers).children():  # not around the model: a layer may be recomputed
                around_forward(layer, lambda forward: _counting(forward, places, split))
    around_forward(model, lambda forward: _at_positions(forward, split, row, length))
    log.info("Applied context parallelism (%s) to the library's attention, mesh cp=%d", name, split.ranks)


def _at_positions(
    forward: Callable[..., Any], split: SequenceSplit, row: SimpleNamespace, length: int | None
) -> Callable[..., Any]:
    """Return a forward that says at which positions of the whole sequence, or of their documents, its inputs are.

    ``row`` gets the whole rows' ``positions`` in their documents.
    """

    def at_positions(model: nn.Module, *inputs: Tensor, **named: Any) -> Any:
        tokens = named.get(INPUTS, inputs[0])
        rows, part = tokens.shape[:2]
        filled = part * split.ranks
        row.positions = named.pop(POSITIONS, None)
        if row.positions is None:
            positions = split.positions(part, tokens.device).expand(rows, -1)
            of_whole = torch.full_like(positions, (length or filled) - 1), False
        else:
            positions = split.part(row.positions, 1)
            of_whole = split.part(largest_of(row.positions), 1), True
        # Of the whole length: without a mask, the jump from head to tail is taken for the begin of another sample.
        ones = torch.ones(rows, filled, dtype=torch.long, device=tokens.device)
        return forward(model, *inputs, **named, mask=ones, position_ids=positions, of_whole=of_whole)

    return at_positions


def _counting_places(model: nn.Module) -> set[Place]:
    """Return the places in the library's layers that count the positions they are given: where ``torch.arange`` takes
    the length of the sequence, whatever that is. None of a model that fake tensors do not run through.
    """
    counted: list[set[Place]] = []
    for length in LENGTHS:
        counted.append(set())

        def note(found: Tensor, args: Any, place: Place, length: int = length) -> Tensor:
            if args == (length,):
                counted[-1].add(place)
            return found

        with _AtArange(note), suppress(Exception), on_fake_tensors(copy.deepcopy(model)) as fake:
            _run(fake, torch.zeros(2, length, dtype=torch.long))  # of one row, all its tokens are as many
    return set.intersection(*counted)


def _run(model: Any, tokens: Tensor) -> None:
    if getattr(model, "_kept", None) is None:
        model(tokens)
    else:  # a pipeline's part
        width, dtype = model.config.get_text_config().hidden_size, next(model.parameters()).dtype
        model(torch.zeros(*tokens.shape, width, dtype=dtype), **{INPUTS: tokens})


class _AtArange(TorchFunctionMode):
    """Passes the results of ``torch.arange``, with its arguments and the place in the code, through a function."""

    def __init__(self, change: Callable[[Tensor, Any, Place], Tensor]) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return self.change(found, args, _place()) if func is torch.arange else found


def _place() -> Place:
    frame: Any = sys._getframe(1)
    while frame.f_code.co_name == "__torch_function__":  # of the modes around the call of PyTorch's function
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _counting(forward: Callable[..., Any], places: set[Place], split: SequenceSplit) -> Callable[..., Any]:
    """Return a layer's forward in which these places count this rank's positions."""

    def own(found: Tensor, _: Any, place: Place) -> Tensor:
        return split.positions(len(found), found.device).to(found.dtype) if place in places else found

    def counting(layer: nn.Module, *args: Any, **named: Any) -> Any:
        with _AtArange(own):
            return forward(layer, *args, **named)

    return counting


class _Call(NamedTuple):
    """A layer's call of its attention: query (batch, heads, length, head_dim), key, value (batch, kv_heads, ...)."""

    module: Any
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    options: dict[str, Any]


def _gathered(call: _Call, split: SequenceSplit, group: dist.ProcessGroup) -> Any:
    def whole(x: Tensor) -> Tensor:
        parts = all_gather_single_autograd(x.movedim(2, 0).contiguous(), 0, group)
        return split.in_order(parts, 0).movedim(0, 2)

    return _attend(call._replace(key=whole(call.key), value=whole(call.value)))


def _ulysses(call: _Call, split: SequenceSplit, group: dist.ProcessGroup) -> Any:
    module, options = call.module, call.options
    repeats = split.ranks // math.gcd(split.ranks, call.key.shape[1])
    key, value = (x.repeat_interleave(repeats, 1) for x in (call.key, call.value))
    query, key, value = (to_heads(x, split, group) for x in (call.query, key, value))
    own: dict[str, Any] = {"num_key_value_groups": query.shape[1] // key.shape[1]}
    if isinstance(sinks := getattr(module, "sinks", None), Tensor):  # one of each head
        own["sinks"] = sinks.chunk(split.ranks)[split.rank]
        options = options | ({"s_aux": own["sinks"]} if options.get("s_aux") is not None else {})
    mixed, _ = _attend(_Call(_View(module, own), query, key, value, call.mask, options))
    return to_positions(mixed.transpose(1, 2), split, group).transpose(1, 2).contiguous(), None


def _ring(call: _Call, split: SequenceSplit, group: dist.ProcessGroup) -> Any:
    query, key, value, options = call.query, call.key, call.value, call.options
    if any(options.get(each) is not None for each in MORE_THAN_A_MASK):
        raise UserError(f"{NO_RING} its attention has a softcap, sinks or a bias; {INSTEAD}")
    if options.get("dropout") or key.shape != value.shape:
        raise UserError(f"{NO_RING} its attention has dropout, or keys and values of different sizes; {INSTEAD}")
    width = query.shape[-1]
    scaled = query * (options["scaling"] * math.sqrt(width)) if options.get("scaling") else query
    documents = None if call.mask is None else call.mask[:, 0, 0]  # see ``apply``
    mixed = ring(scaled, key, value, None, causal=True, documents=documents, split=split, group=group)
    return mixed.transpose(1, 2).contiguous(), None


def _attend(call: _Call) -> tuple[Tensor, Tensor | None]:
    """Attend by the library's fused function, or by the model's own where it has more than a mask.

    Returns (batch, length, heads, head_dim).
    """
    module, query, key, value, mask, options = call
    eager = getattr(sys.modules[type(getattr(module, "module", module)).__module__], "eager_attention_forward", None)
    if eager is None or all(options.get(key) is None for key in MORE_THAN_A_MASK):
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    options = {name: each for name, each in options.items() if name != "is_causal"}
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        bias = bias.masked_fill(~mask, torch.finfo(query.dtype).min)
    attended: tuple[Tensor, Tensor | None] = eager(module, query, key, value, bias, **options)
    return attended


class _View(SimpleNamespace):
    """A module of which some attributes are those of this rank's heads."""

    def __init__(self, module: nn.Module, own: dict[str, Any]) -> None:
        super().__init__(module=module, **own)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["module"], name)
