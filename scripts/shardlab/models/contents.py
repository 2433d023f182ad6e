"""What a model contains, seen on the meta device before any rank works, and which strategies take it.

The rules are in settings/model_rules.py.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from inspect import getsource
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from shardlab.errors import UserError
from shardlab.models import build, matching, without_numbers
from shardlab.models._chain import Chain
from shardlab.models.declared import COPIED, layer_lists, split_unevenly
from shardlab.models.weights import names_of_each
from shardlab.patches.torch_internals import attributes_read
from shardlab.settings.model_rules import SHOWN, check_properties, notes, refusal, techniques
from shardlab.settings.types import Run


def check(run: Run, model: nn.Module) -> None:
    """Check that a run's strategy takes its model, without weights (see ``models.build``).

    Raises:
        UserError: it does not; names what is in the way, and what would work.
    """
    check_properties(run, inspect(run, model))
    if run.recipe.activation_checkpointing != "none":
        recomputed = {module for block in blocks_of(run, model) for module in block.modules()}
        for name, module in model.named_modules():
            if module in recomputed and keeps_statistics(module):
                raise UserError(
                    f"recipe.activation_checkpointing: {name} of model {run.model.name} is batch norm, whose "
                    "statistics a recomputation would change once more; set it to none, or use another norm."
                )


def check_drawn(run: Run, model: nn.Module) -> None:
    """Check that a second construction, with other random numbers, only draws what files of weights have.

    Raises:
        UserError: a value that is in no file differs; names it.
    """
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(run.seed + 1)
        other = build(run.model, run.task, getattr(torch, run.recipe.dtype))
    random.setstate(states[0])
    np.random.set_state(states[1])
    theirs = dict(_unsaved(other))
    differing = [name for name, value in _unsaved(model) if not same(value, theirs.get(name))]
    if differing:
        raise UserError(
            f"the constructor of model {run.model.name} draws {', '.join(differing[:SHOWN])}, which no file of weights "
            "has; register it as a persistent buffer, or draw it from a generator with its own seed."
        )


def _unsaved(model: nn.Module) -> Iterator[tuple[str, Any]]:
    saved = model.state_dict(keep_vars=True)
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name not in saved)
    for prefix, module in model.named_modules():
        values = ((key, value) for key, value in vars(module).items() if isinstance(value, Tensor | int | float))
        yield from ((_joined(prefix, key), value) for key, value in values)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; tensors without values, and NaN of the first, count as equal."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.is_meta or other.is_meta:
        return isinstance(one, Tensor) or bool(one == other or one != one)
    return one.shape == other.shape and bool(((one == other) | (one != one)).all())


def check_all(run: Run, model: nn.Module, runs: list[Run], seen: Mapping[str, list[str]]) -> list[str]:
    """Check that the model is one that each of the runs takes; return notes on those that will not be equal.

    ``run`` is one on one device, whether it is among the runs or not; ``seen``: further properties (runtime/trial.py).

    Raises:
        UserError: a run does not take it; names those that do.
    """
    check(run, model)
    properties = {each.strategy: inspect(each, model) | dict(seen) for each in runs}
    refused = {each.strategy: refusal(each, properties[each.strategy]) for each in runs}
    if sentence := next(filter(None, refused.values()), None):
        names = [name for name, why in refused.items() if why]
        taken = [name for name, why in refused.items() if not why]
        alternatives = f" Of the strategies to train it, these take it: {', '.join(taken)}." if taken else ""
        raise UserError(f"{', '.join(names)} x {run.workload}: {sentence}{alternatives}")
    sentences: dict[str, list[str]] = defaultdict(list)
    for each in runs:
        for note in notes(each, properties[each.strategy]):
            sentences[note].append(each.strategy)
    return [f"{', '.join(names)} and strategies alike: {note}" for note, names in sentences.items()]


def inspect(run: Run, model: nn.Module) -> dict[str, list[str]]:
    """Return the properties of a model that the rules name, each with the parameters, buffers or modules that have it.

    Those of places (a stage, a layer that is split) are those under the run's strategy.
    """
    parameters = dict(model.named_parameters())
    trained = {name: value for name, value in parameters.items() if value.requires_grad}
    dtype = getattr(torch, run.recipe.dtype)
    drawn_by_module = hasattr(model, "initialize") and not run.model.folder
    made = [name for name, buffer in saved_buffers(model).items() if buffer.is_meta and drawn_by_module]
    properties = {
        "tied_split": _in_split_layers(run, model),
        "apart": _not_apart(run, model),
        **(_of_library(run, model) if run.model.folder else {}),
        "scalar": [name for name, value in parameters.items() if not value.dim()],
        "empty": [name for name, value in parameters.items() if not value.numel()],
        "complex": [name for name, value in parameters.items() if value.is_complex()],
        "mixed": [name for name, value in trained.items() if value.dtype != dtype],
        "mixed_in_module": [*_of_several_dtypes(model, dtype)],
        "made_unsaved": [*made, *_made_unsaved(model)],
        "hooked": [name for name, value in parameters.items() if _has_hooks(value)],
        "sparse": [name for name, module in model.named_modules() if getattr(module, "sparse", None) is True],
        "left_out": dropout_keys(model, {}, "layerdrop"),
        "mixes": [name for name, module in model.named_modules() if is_batch_norm(module)],
    }
    return {key: names for key, names in properties.items() if names}


def tied(model: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    return [names for names in names_of_each(model.named_parameters(remove_duplicate=False)) if len(names) > 1]


def shared_outside(model: nn.Module, modules: Iterable[nn.Module]) -> set[nn.Module]:
    """Return those of the modules that have a parameter which a module outside of them has, too."""
    owners: dict[int, set[nn.Module]] = defaultdict(set)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)].add(module)
    return {
        module
        for module in modules
        if any(not owners[id(parameter)] <= {*module.modules()} for parameter in module.parameters())
    }


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a file of weights has."""
    saved = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module computes its outputs from the statistics of a batch, if it is in training mode."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm)


def keeps_statistics(module: nn.Module) -> bool:
    """Return whether a module is a batch norm of any kind whose forward passes change its statistics in training."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats


def dropout_keys(model: nn.Module, args: Mapping[str, Any], word: str = "drop") -> list[str]:
    """Return the keys of a configuration, that of a library's model or ``args`` of ours, whose dropout is not 0: those
    that its modules read, and not only other classes of its type.

    ``word``: what is in the names of such keys.
    """
    config: Any = getattr(model, "config", None)
    of_library = hasattr(config, "to_dict")
    settings = config.to_dict() if of_library else args
    found = [key for key, value in settings.items() if word in key and isinstance(value, float) and value > 0]
    return read_keys(model, found) if of_library else found


def read_keys(model: Any, keys: Iterable[str]) -> list[str]:
    """Return those of the keys of a configuration that the classes of a library's modules ask for, by any of their
    names: not other classes of the same file, at which _transformers.unread looks, too.
    """
    kinds: set[Any] = {type(module) for module in model.modules()}

    def is_read(key: str) -> bool:
        names = [key, *(other for other, own in model.config.attribute_map.items() if own == key)]
        pattern = re.compile(rf"\b({'|'.join(names)})\b")
        return any(pattern.search(_code(kind)) for kind in kinds)

    return [*filter(is_read, keys)]


@cache
def _code(kind: type[nn.Module]) -> str:
    return "\n".join(getsource(base) for base in kind.__mro__ if base.__module__.startswith("transformers.models"))


def dropouts(model: nn.Module, args: Mapping[str, Any]) -> list[str]:
    """Return what is known of the random numbers of a model's forward pass: keys, or modules."""
    modules = [
        name for name, each in model.named_modules() if isinstance(each, nn.modules.dropout._DropoutNd) and each.p
    ]
    return dropout_keys(model, args) + dropout_keys(model, args, "jitter") or modules


def unused(model: nn.Module, loss: Tensor) -> list[str]:
    """Return the trained parameters that a loss does not depend on."""
    used = reached(loss)
    return [name for name, value in model.named_parameters() if value.requires_grad and id(value) not in used]


def reached(loss: Tensor) -> set[int]:
    """Return the ids of the parameters that a loss depends on, from its autograd graph; no backward pass."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (variable := getattr(node, "variable", None)) is not None:
            found.add(id(variable))
        waiting += [following for following, _ in node.next_functions]
    return found


@contextmanager
def read_outside(model: nn.Module, blocks: Iterable[nn.Module]) -> Iterator[set[str]]:
    """Yield a set that collects the parameters of blocks that are read while the block's forward does not run."""
    found: set[str] = set()
    names = {id(value): name for name, value in model.named_parameters()}
    owners = {id(value): block for block in blocks for value in block.parameters()}
    running: list[nn.Module] = []

    def note(value: Any) -> None:
        if isinstance(value, nn.Parameter) and id(value) in owners and owners[id(value)] not in running:
            found.add(names[id(value)])

    hooks: list[Any] = []
    for block in {*owners.values()}:
        hooks.append(block.register_forward_pre_hook(lambda module, _: running.append(module), prepend=True))
        hooks.append(block.register_forward_hook(lambda module, *_: running.remove(module), always_call=True))
    with attributes_read(note):
        yield found
    for hook in hooks:
        hook.remove()


def check_outputs(run: Run, outputs: Any) -> None:
    """Check that a model returned what tasks take.

    Raises:
        UserError: it is another type; says which.
    """
    of_experts = isinstance(outputs, tuple) and all(isinstance(value, Tensor) for value in outputs)
    if isinstance(outputs, Tensor) or (of_experts and run.model.experts):
        return
    keys = f" with the keys {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
    raise UserError(
        f"model {run.model.name} returns a {type(outputs).__name__}{keys}; let its forward return one tensor, the "
        f"model's output for task {run.task}."
    )


def _in_split_layers(run: Run, model: nn.Module) -> list[str]:
    if run.model.folder:
        return split_unevenly(model, run.model.tensor)
    split = {id(module) for pattern in run.model.tensor for module in matching(model, pattern)}
    ties = tied(model)
    owners = {name: model.get_submodule(name.rpartition(".")[0]) for names in ties for name in names}
    return [name for names in ties if any(id(owners[name]) in split for name in names) for name in names]


def _of_library(run: Run, model: nn.Module) -> dict[str, list[str]]:
    """Return the properties that a model of the transformers library alone can have."""
    plan, experts = run.model.tensor, run.model.experts
    found = {}
    if not split_share(run, model):
        found["unsplit"] = [*plan] or ["none is declared"]
    if run.options.sequence_parallel:
        found["gathered"] = _between_whole(run, model)
    if run.options.loss_parallel:
        found["whole_logits"] = _without_split_logits(run, model)
    if run.mesh.axes("experts"):
        counts = {p: getattr(module, "num_experts", 0) for p in experts for module in matching(model, p)}
        ep = run.mesh.parts("experts")
        found["uneven_experts"] = [f"{pattern}: {count}" for pattern, count in counts.items() if count % ep]
        found["without_experts"] = [] if experts else ["none are declared"]
    if run.mesh.tensor_parallel:
        found["indivisible"] = _indivisible(run, model)
    return found


def split_share(run: Run, model: nn.Module) -> float:
    """Return the part of the blocks' values that the tensor-parallel plan of a transformers model splits."""
    names = {id(value): name for name, value in model.named_parameters()}
    own = {id(value): value.numel() for block in blocks_of(run, model) for value in block.parameters()}
    split = sum(count for key, count in own.items() if SPLITS.search(_style(run.model.tensor, names[key]) or ""))
    return split / max(sum(own.values()), 1)


SPLITS = re.compile("colwise|rowwise")
"""Styles of transformers that split a parameter."""


def _style(plan: Mapping[str, str], name: str) -> str | None:
    """Return the style that a plan of transformers gives a parameter, by its own name or that of its module."""
    generic = without_numbers(name)
    return plan.get(generic) or plan.get(generic.rpartition(".")[0])


def _indivisible(run: Run, model: nn.Module) -> list[str]:
    """Return the numbers of heads that tp does not divide, if the plan splits heads."""
    parts = run.mesh.tensor_parts
    split = {"num_attention_heads"} if _splits_heads(run.model.tensor, QUERIES) else set()
    split |= {"num_key_value_heads"} if _splits_heads(run.model.tensor, KEYS) else set()
    config: Any = model.config
    layers = config.per_layer_config if config.is_heterogeneous else [config]
    found = {(key, getattr(layer, key, None)): None for key in sorted(split) for layer in layers}
    return [f"{key} {count}" for key, count in found if isinstance(count, int) and count % parts]


def _between_whole(run: Run, model: nn.Module) -> list[str]:
    """Return the patterns of a transformers model's plan between whose layers sequence parallelism cannot split: those
    that gather or that split other than by column and row, and columns that read a layer's own input.
    """
    lists = layer_lists(model)
    if len(lists) != 1:
        return lists or ["no list of layers"]
    inside = f"{without_numbers(lists[0])}.*."
    plan = {pattern.removeprefix(inside): style for pattern, style in run.model.tensor.items() if inside in pattern}
    known = ("colwise", "packed_colwise_3", "rowwise", "replicated_with_grad_allreduce", COPIED)
    split = {pattern: style for pattern, style in plan.items() if style != "local_heads"}
    return [inside + each for each, style in split.items() if style not in known or "." not in each]


def _without_split_logits(run: Run, model: nn.Module) -> list[str]:
    heads = {id(module) for module in [cast(Any, model).get_output_embeddings()] if module is not None}
    names = [name for name, module in model.named_modules() if id(module) in heads]
    split = ("colwise_gather_output", "colwise_rep")
    return [] if any(run.model.tensor.get(name) in split for name in names) else names or ["no output layer"]


QUERIES, KEYS = (
    ("q_proj", "q_b_proj", "kv_b_proj", "qkv_proj", "query_key_value", "query", "Wq", "Wqkv", "c_attn"),
    ("k_proj", "qkv_proj", "query_key_value"),
)
"""Names of layers whose outputs are heads."""


def _splits_heads(plan: Mapping[str, str], layers: tuple[str, ...]) -> bool:
    columns = ("colwise", "packed_colwise_3")
    return any(pattern.rpartition(".")[2] in layers and style in columns for pattern, style in plan.items())


def blocks_of(run: Run, model: nn.Module) -> list[nn.Module]:
    """Return the modules of the workload's `blocks`."""
    return [module for pattern in run.model.blocks for module in matching(model, pattern)]


def _not_apart(run: Run, model: nn.Module) -> list[str]:
    """Return why a pipeline cannot split the model."""
    if "pipeline" not in techniques(run):
        return []
    if not isinstance(model, Chain):
        return ["there is not one list of them"]
    count = len(model.segments())
    stages = run.mesh.stages * run.options.pipeline.stages_per_rank if run.mesh.pipelined else run.devices_per_rank
    few = [f"{count} segments for {stages} stages"] if count < stages else []
    return model.obstacles() + few


def _of_several_dtypes(model: nn.Module, dtype: torch.dtype) -> Iterator[str]:
    """Yield the trained parameters of another dtype that FSDP cannot shard apart from those of ``dtype``."""
    for prefix, module in model.named_modules():
        own = {name: value for name, value in module.named_parameters(recurse=False) if value.requires_grad}
        inside = {value.dtype for value in module.parameters() if value.requires_grad and value.numel()}
        if len(inside) > 1 or not prefix:
            yield from (_joined(prefix, name) for name, value in own.items() if value.dtype != dtype)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _made_unsaved(model: nn.Module) -> Iterator[str]:
    """Yield names of values that a constructor computed from parameters and that no file of weights has."""
    saved = saved_buffers(model)
    yield from (name for name, buffer in model.named_buffers() if buffer.is_meta and name not in saved)
    parameters = {id(value) for value in model.parameters()}
    for prefix, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        computed = {getattr(hook, key, None) for hook in hooks for key in ("name", "_tensor_name")}
        for key, value in vars(module).items():
            if key in computed:  # before each forward pass (torch.nn.utils.weight_norm, prune)
                continue
            values = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(each, Tensor) and each.is_meta and id(each) not in parameters for each in values):
                yield _joined(prefix, key)


def _has_hooks(parameter: Any) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
