"""Tensor parallelism (Shoeybi et al., 2019, arXiv:1909.08053): layers split by column, row or vocabulary.

With sequence parallelism (Korthikanti et al., 2022, arXiv:2205.05198) the activations between the split layers are
split along the sequence.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from shardlab.models import lora, matching
from shardlab.models._experts import Experts
from shardlab.runtime.distributed import text_of_mesh

log = logging.getLogger(__name__)

SEQUENCE = Shard(1)


class _Normalize(ParallelStyle):
    """A norm between split layers: on whole sequences, or on this rank's part of them, gathered afterwards.

    Its output is one DTensor for all column layers that follow, so that their gradients are added before they are
    reduced: one all-reduce instead of one per layer.
    """

    def __init__(self, layout: Placement, *, local_output: bool) -> None:
        super().__init__()
        self.layout, self.local_output = layout, local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        # Without a partition function, distribute_module replicates the parameters.
        return distribute_module(module, device_mesh, None, self._input, self._output)  # type: ignore[arg-type]

    def _input(self, _: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return (_split(inputs[0], mesh, self.layout), *inputs[1:])

    def _output(self, _: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
        whole = output.redistribute(mesh, [Replicate()])
        return whole.to_local() if self.local_output else whole


def apply(
    model: nn.Module,
    plan: dict[str, str],
    blocks: list[str],
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool,
    loss_parallel: bool,
) -> None:
    """Split in place by ``plan`` (submodule pattern: a key of the styles below) over the 1-D ``mesh``.

    ``blocks`` are patterns of the submodules whose activations are split with ``sequence_parallel``. Patterns that
    match nothing are ignored: a pipeline stage has only some of the layers.
    """
    styles = _styles(sequence_parallel=sequence_parallel, loss_parallel=loss_parallel)
    found = {pattern: styles[style]() for pattern, style in plan.items() if matching(model, pattern)}
    with lora.factors_apart(model) as factors:
        parallelize_module(model, mesh, found)  # type: ignore[arg-type]
        for pattern, style in plan.items():
            for layer in matching(model, pattern):
                if isinstance(layer, lora.AdaptedLinear):
                    _split_factors(factors[layer], style, mesh)
    if sequence_parallel:
        for pattern in blocks:
            for block in matching(model, pattern):
                block.register_forward_pre_hook(partial(_split_first, mesh))
    log.info(
        "Applied tensor parallelism to %d modules, mesh %s%s%s",
        sum(len(matching(model, pattern)) for pattern in found),
        text_of_mesh(mesh),
        ", sequence parallel" if sequence_parallel else "",
        ", loss parallel" if loss_parallel else "",
    )


def _split_factors(factors: dict[str, nn.Parameter], style: str, mesh: DeviceMesh) -> None:
    """Split the factor that has the layer's split dimension; the other is whole, its gradient a sum over the ranks."""
    row = style == "row"
    placements = {"lora_A": Shard(1) if row else Replicate(), "lora_B": Replicate() if row else Shard(0)}
    for key, placement in placements.items():
        factor = factors[key]
        split = distribute_tensor(factor, mesh, [placement], src_data_rank=None)
        factors[key] = nn.Parameter(split, requires_grad=factor.requires_grad)


def _styles(*, sequence_parallel: bool, loss_parallel: bool) -> dict[str, Callable[[], ParallelStyle]]:
    """Return the ways to split a layer.

    A ``column`` layer's output stays split for the ``row`` layer that follows it; ``column_gather`` gathers it again,
    except under loss parallelism; ``vocab`` is an Embedding whose rows are split; ``norm`` precedes column layers,
    ``norm_whole`` a layer that is not split; ``dropout`` is a Dropout between column and row; ``router`` and
    ``experts`` are a mixture of experts.
    """
    between: Placement = SEQUENCE if sequence_parallel else Replicate()
    return {
        "column": ColwiseParallel,
        "column_gather": partial(ColwiseParallel, use_local_output=False)
        if loss_parallel
        else partial(ColwiseParallel, output_layouts=Replicate()),
        "row": partial(RowwiseParallel, output_layouts=between, use_local_output=not sequence_parallel),
        "vocab": _Vocabulary,
        "dropout": _Dropout,
        "norm": partial(_Normalize, between, local_output=False),
        "norm_whole": partial(_Normalize, between, local_output=True),
        "router": _Router,
        "experts": partial(_Experts, between, local_output=not sequence_parallel),
    }


class _Vocabulary(RowwiseParallel):
    """An Embedding whose rows are split; its output is whole."""

    def __init__(self) -> None:
        super().__init__(input_layouts=Replicate())

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        # torch.compile of the block that follows may otherwise write into the gradient of its output, silently
        # (tests/parity: compile x TP).
        module.register_forward_hook(lambda _module, _inputs, output: output.clone())
        return module


class _Dropout(ParallelStyle):
    """Dropout of split activations: different masks on each rank, as for an unsplit tensor.

    With the same mask on every rank, units of different ranks would drop together (Megatron-LM keeps a generator per
    tensor-parallel rank, arXiv:2104.04473). Here every mask's seed comes from the common generator, which recomputation
    in the backward pass resets.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        forward, rank = module.forward, device_mesh.get_local_rank()

        def masked(x: Tensor) -> Tensor:
            if not module.training:
                return cast(Tensor, forward(x))
            with own_masks(x.device, rank):
                return cast(Tensor, forward(x))

        module.forward = masked
        return module


class _Router(ParallelStyle):
    """A Router: whole on every rank, as every rank has all tokens and all experts, each in part."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_pre_hook(lambda _, inputs: (cast(DTensor, inputs[0]).to_local(), *inputs[1:]))
        return module


class _Experts(ParallelStyle):
    """Experts whose hidden dimension is split: each rank computes a part of each sum over it."""

    def __init__(self, layout: Placement, *, local_output: bool) -> None:
        super().__init__()
        self.layout, self.local_output = layout, local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        split = cast(Experts, module)
        if not split.experts:
            return module
        split.matrices = lambda: tuple(  # type: ignore[method-assign, return-value, assignment]
            cast(DTensor, matrix).to_local() for matrix in (split.gate, split.up, split.down)
        )
        # The functions' types lack the mesh.
        return distribute_module(module, device_mesh, self._split, self._inputs, self._output)  # type: ignore[arg-type]

    def _split(self, _: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in [*module._parameters.items()]:
            assert parameter is not None
            split = distribute_tensor(parameter, mesh, [Shard(2 if name == "down" else 1)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(split, requires_grad=parameter.requires_grad))

    def _inputs(self, _: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        # The same on every rank, but the gradient is a sum over the ranks' parts: of the tokens and of the weights,
        # without which each rank's router would learn from its own part only.
        x, *routing = inputs
        partial_gradient = [Partial()]
        tokens = cast(DTensor, x).to_local(grad_placements=partial_gradient)
        if not routing:
            return (tokens,)
        weights, ids = routing
        whole = DTensor.from_local(weights, mesh, [Replicate()], run_check=False)
        return tokens, whole.to_local(grad_placements=partial_gradient), ids

    def _output(
        self, _: nn.Module, output: Tensor | tuple[Tensor, Tensor], mesh: DeviceMesh
    ) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(output, tuple):
            return self._sum(output[0], mesh), output[1]
        return self._sum(output, mesh)

    def _sum(self, part: Tensor, mesh: DeviceMesh) -> Tensor:
        whole = DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(mesh, [self.layout])
        return whole.to_local() if self.local_output else whole


@contextmanager
def own_masks(device: torch.device, rank: int) -> Iterator[None]:
    """Draw from a generator of this rank inside; the common one is the same again afterwards."""
    common = drawn()
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(common + rank)
        yield


def drawn() -> int:
    """Draw a number from the host's generator, without waiting for a device."""
    return int(torch.randint(2**31, (), device="cpu").numpy())


def _split(x: Tensor, mesh: DeviceMesh, layout: Placement) -> DTensor:
    """Return ``x``, plain and whole on every rank or a DTensor, in this layout."""
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return x if x.placements == (layout,) else x.redistribute(mesh, [layout])


def _split_first(mesh: DeviceMesh, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_split(inputs[0], mesh, SEQUENCE), *inputs[1:])
