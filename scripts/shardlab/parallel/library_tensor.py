"""Tensor parallelism of transformers models: the library's plan (or the workload's, in its words) with its styles.

Its styles replace the ``forward`` of single modules, so a part of a model is cut out first and split then. What they do
differently here: the gradient of a parameter that every rank uses for its own heads alone (q and k norms) is added up
once per step. The library's hook adds what has been accumulated, after each backward pass
(transformers/distributed/tensor_parallel.py, ReplicatedWithGradAllReduce): sums of sums with two micro-batches.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES, _get_parameter_plan
from transformers.distributed.tensor_parallel import (
    ColwiseParallel,
    PackedColwiseParallel,
    RowwiseParallel,
    TensorParallelLayer,
)
from transformers.pytorch_utils import Conv1D

from shardlab.models._chain import Absent
from shardlab.models._library_chain import STATES
from shardlab.models.contents import dropout_keys, tied
from shardlab.models.declared import COPIED, kv_heads, layer_lists
from shardlab.parallel import tensor
from shardlab.runtime.distributed import text_of_mesh

log = logging.getLogger(__name__)


class _OfOwnHeads(TensorParallelLayer):  # type: ignore[misc]
    """A module that every rank applies to its own heads: its gradient is a sum over the ranks, taken by the engine."""

    def shard_param(self, module: nn.Module, param: str, mesh: DeviceMesh) -> None:
        whole = module._parameters[param]
        assert whole is not None
        module._parameters[param] = _distributed(whole, mesh, Replicate())

    @contextmanager
    def context_around_forward(self, module: nn.Module, mesh: DeviceMesh) -> Iterator[None]:
        whole = dict(module._parameters)
        for name, value in whole.items():
            if isinstance(value, DTensor):
                used = value.to_local(grad_placements=[Partial()])
                own = used if name == "lora_A" else self.own_part(used, mesh)
                module._parameters[name] = own  # type: ignore[assignment]
        try:
            yield
        finally:
            module._parameters.update(whole)

    def own_part(self, parameter: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """Return what this rank uses of a parameter."""
        return parameter


class _CopiedHeads(_OfOwnHeads):
    """Keys or values of fewer heads than ranks: each rank computes the head that its queries belong to."""

    def __init__(self, heads: Any) -> None:
        self.heads = heads

    def own_part(self, parameter: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        first = mesh.get_local_rank() * self.heads // mesh.size()
        heads = parameter.unflatten(0, (self.heads, -1))
        return heads.narrow(0, first, max(1, self.heads // mesh.size())).flatten(0, 1)

    def transform_inputs_pre_forward(self, module: nn.Module, args: Any, kwargs: Any, mesh: DeviceMesh) -> Any:
        # Each rank's heads give a part of the input's gradient.
        return (_laid_out(mesh, Replicate(), args[0]).to_local(grad_placements=[Partial()]), *args[1:]), kwargs


class _LocalHeads(TensorParallelLayer):  # type: ignore[misc]
    """A module whose forward takes the numbers of heads from its attributes: those of this rank, which are a part.

    Of a bias per head, (batch * heads, ...), it takes that of its own.
    """

    def install_forward(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for key in NUMBERS_OF_HEADS & {*vars(module)}:
            setattr(module, key, max(1, cast(int, getattr(module, key)) // mesh.size()))
        return super().install_forward(module, mesh)  # type: ignore[no-any-return, no-untyped-call]

    def transform_inputs_pre_forward(self, module: nn.Module, args: Any, kwargs: Any, mesh: DeviceMesh) -> Any:
        for key in BIASES_OF_HEADS & {*kwargs}:
            heads: Any = getattr(module, "num_heads", None) or module.n_heads
            by_rank = kwargs[key].unflatten(0, (-1, mesh.size(), heads))
            kwargs[key] = by_rank[:, mesh.get_local_rank()].flatten(0, 1)
        return args, kwargs


class _PackedColumns(PackedColwiseParallel):  # type: ignore[misc]
    """Columns of a matrix of several parts (queries, keys, values), of each of which every rank has its piece."""

    def shard_param(self, module: nn.Module, param: str, mesh: DeviceMesh) -> None:
        whole = module._parameters[param]
        assert whole is not None
        columns = int(isinstance(module, Conv1D))
        packed = _StridedShard(columns, split_factor=self.split_factor) if self.split_factor > 1 else Shard(columns)
        # A bias is whole: FSDP and checkpoints would split its one dimension again.
        module._parameters[param] = _distributed(whole, mesh, Replicate() if whole.dim() == 1 else packed)

    def install_forward(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, Conv1D):
            module.nf //= mesh.size()
        return super().install_forward(module, mesh)  # type: ignore[no-any-return, no-untyped-call]

    @contextmanager
    def context_around_forward(self, module: nn.Module, mesh: DeviceMesh) -> Iterator[None]:
        whole: Any = dict(module._parameters)
        module._parameters["weight"] = whole["weight"].to_local()
        if whole.get("bias") is not None:
            bias = whole["bias"].to_local(grad_placements=[Partial()])
            by_rank = bias.view(self.split_factor, mesh.size(), -1)
            module._parameters["bias"] = by_rank[:, mesh.get_local_rank()].flatten()
        try:
            yield
        finally:
            module._parameters.update(whole)


class _RowsOfConv1D(RowwiseParallel):  # type: ignore[misc]
    """Rows of a layer whose weight is (inputs, outputs)."""

    def shard_param(self, module: nn.Module, param: str, mesh: DeviceMesh) -> None:
        whole = module._parameters[param]
        assert whole is not None
        module._parameters[param] = _distributed(whole, mesh, Replicate() if param == "bias" else Shard(0))

    def install_forward(self, module: Any, mesh: DeviceMesh) -> nn.Module:
        module.in_features = module.nx
        return super().install_forward(module, mesh)  # type: ignore[no-any-return, no-untyped-call]


NUMBERS_OF_HEADS = {"num_heads", "num_attention_heads", "num_key_value_heads", "n_heads", "n_head", "split_size"}
BIASES_OF_HEADS = {"alibi", "position_bias"}
COLUMNS = ("colwise", "packed_colwise_3")
SEQUENCE = Shard(1)
GATHERED = ("colwise_gather_output", "colwise_rep")
OURS = {"replicated_with_grad_allreduce": _OfOwnHeads(), "local_heads": _LocalHeads(), COPIED: _OfOwnHeads()}
OURS["packed_colwise_3"] = _PackedColumns(split_factor=3)
"""Styles of the library that are not used as they are, and those that it does not have."""
OF_CONV1D = {"colwise": _PackedColumns(split_factor=1), "rowwise": _RowsOfConv1D()}
"""Styles of layers whose weight is (inputs, outputs)."""


def apply(
    model: nn.Module,
    plan: dict[str, str],
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool,
    loss_parallel: bool,
) -> None:
    """Split in place by ``plan`` (pattern of modules or parameters: a style of the library) over the 1-D ``mesh``.

    Patterns that match nothing are ignored: a pipeline stage has only some of the layers.
    """
    styles = dict(_expanded(model, plan))
    ties = tied(model)
    modules = dict(model.named_modules())
    inside = tuple(f"{name}." for name in layer_lists(model))
    for name, style in styles.items():
        owner, _, leaf = name.rpartition(".")
        layer: Any = OURS[style] if style in OURS else ALL_PARALLEL_STYLES[style]
        if style == COPIED and name in modules:
            layer = _CopiedHeads(kv_heads(modules[owner]))
        if isinstance(modules[name if name in modules else owner], Conv1D):
            layer = OF_CONV1D.get(style, layer)
        if sequence_parallel and style == "rowwise" and name.startswith(inside):
            layer = type(layer)(output_layouts=SEQUENCE, use_local_output=False)
        if loss_parallel and style in GATHERED and not name.startswith(inside):
            layer = ColwiseParallel(use_local_output=False)
        if isinstance(modules.get(name), Absent):
            continue  # of another pipeline stage
        if name in modules:
            if style == "mla_kv_a_proj":  # it reads the width of the rotated part there
                modules[name].config = modules[""].config.get_text_config()  # type: ignore[union-attr, operator]
            layer.install_forward(modules[name], mesh)
        elif modules[owner]._parameters.get(leaf) is not None:
            _shard(layer, modules[owner], leaf, mesh)
    for attention in {name.rpartition(".")[0] for name, style in styles.items() if style == COPIED and name in modules}:
        _repeat_copies(modules[attention], mesh.size())
    if dropout_keys(model, {}):
        for inner in _split_inside(modules, styles):
            _draw_own_masks(inner, mesh.get_local_rank())
    if sequence_parallel:
        _split_sequences(model, modules, styles, mesh)
    # Each of a tie was split by itself; they are one again.
    for first, *others in ties:
        for name in others:
            owner, _, leaf = name.rpartition(".")
            setattr(modules[owner], leaf, model.get_parameter(first))
    log.info(
        "Applied the library's tensor parallelism to %d modules and parameters, mesh %s%s%s",
        len(styles),
        text_of_mesh(mesh),
        ", sequence parallel" if sequence_parallel else "",
        ", loss parallel" if loss_parallel else "",
    )


def _shard(layer: Any, module: nn.Module, leaf: str, mesh: DeviceMesh) -> None:
    """Split a parameter. Of an adapter's factors, one has the layer's split dimension; the other is whole, its gradient
    a sum over the ranks.
    """
    whole = leaf == ("lora_B" if isinstance(layer, RowwiseParallel) else "lora_A")
    if whole:
        module._parameters[leaf] = _distributed(module.get_parameter(leaf), mesh, Replicate())
    else:
        layer.shard_param(module, leaf, mesh)


def _repeat_copies(attention: Any, ranks: int) -> None:
    """Let an attention repeat this rank's one key head for those queries of its that are on this rank."""
    attention.num_key_value_groups //= max(1, ranks // kv_heads(attention))


def _split_sequences(model: nn.Module, modules: dict[str, nn.Module], styles: dict[str, str], mesh: DeviceMesh) -> None:
    """Split what the layers pass to each other along the sequence, from the first layer to the last.

    A module with column layers gathers its input, and row layers add up and split again (see ``apply``). All that is
    between them in a layer, its norms and residuals, computes on DTensors.
    """
    (layers,) = layer_lists(model)
    split = {name.rpartition(".")[0] for name, style in styles.items() if style in COLUMNS and name in modules}
    split = {name for name in split if name.startswith(f"{layers}.")}
    for name in split:
        modules[name].register_forward_pre_hook(
            partial(_on_states, partial(_laid_out, mesh, Replicate())), with_kwargs=True
        )
    every = cast(nn.ModuleList, modules[layers])
    every[0].register_forward_pre_hook(partial(_on_states, partial(_laid_out, mesh, SEQUENCE)), with_kwargs=True)
    every[-1].register_forward_hook(partial(_gathered, mesh))
    for name, module in every.named_modules(prefix=layers):
        if not f"{name}.".startswith(tuple(f"{each}." for each in split)):
            for leaf, value in module._parameters.items():
                if value is not None and not isinstance(value, DTensor):
                    module._parameters[leaf] = _distributed(value, mesh, Replicate())


def _on_states(change: Callable[[torch.Tensor], torch.Tensor], _: nn.Module, inputs: Any, named: Any) -> Any:
    if inputs:
        return (change(inputs[0]), *inputs[1:]), named
    return inputs, named | {STATES: change(named[STATES])}


def _laid_out(mesh: DeviceMesh, layout: Placement, states: torch.Tensor) -> DTensor:
    if not isinstance(states, DTensor):
        states = DTensor.from_local(states, mesh, [Replicate()], run_check=False)
    return states.redistribute(mesh, [layout])


def _gathered(mesh: DeviceMesh, _module: nn.Module, _inputs: Any, output: Any) -> Any:
    """Return a layer's output with whole states: what follows the layers knows nothing of DTensors."""
    if isinstance(output, tuple | list):
        return (_laid_out(mesh, Replicate(), output[0]).to_local(), *output[1:])
    return _laid_out(mesh, Replicate(), output).to_local()


def _expanded(model: nn.Module, plan: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the styles of single parameters and modules; a module's parameters come before it."""
    for prefix, module in model.named_modules():
        for leaf in module._parameters:
            name = f"{prefix}.{leaf}".lstrip(".")
            if style := _get_parameter_plan(name, plan, is_weight=True):
                yield name, style
        if style := _get_parameter_plan(prefix, plan, is_weight=False):
            yield prefix, style


def _split_inside(
    modules: dict[str, nn.Module], styles: dict[str, str]
) -> Iterator[tuple[list[nn.Module], list[nn.Module]]]:
    """Yield, of each module whose activations are split between some of its layers, those layers: columns, rows."""
    children: dict[str, dict[str, list[nn.Module]]] = defaultdict(lambda: defaultdict(list))
    for name, style in styles.items():
        if name in modules and style in (*COLUMNS, "packed_colwise", "rowwise"):
            kind = "rowwise" if style == "rowwise" else "colwise"
            children[name.rpartition(".")[0]][kind].append(modules[name])
    yield from ((each["colwise"], each["rowwise"]) for each in children.values() if len(each) == 2)


def _draw_own_masks(layers: tuple[list[nn.Module], list[nn.Module]], rank: int) -> None:
    """Draw what is random between column and row layers (dropout of attention) from this rank's own generator.

    As in parallel/tensor.py.
    """
    columns, rows = layers
    own = ExitStack()
    entered: list[bool] = []

    def enter(module: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        if module.training and not entered:
            own.enter_context(tensor.own_masks(inputs[0].device, rank))
            entered.append(True)

    def leave(_module: nn.Module, _inputs: tuple[Any, ...]) -> None:
        own.close()
        entered.clear()

    for column in columns:
        column.register_forward_hook(enter)
    for row in rows:
        row.register_forward_pre_hook(leave)


def _distributed(whole: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> nn.Parameter:
    split = distribute_tensor(whole, mesh, [*placements], src_data_rank=None)
    return nn.Parameter(split, requires_grad=whole.requires_grad)
