"""Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon): momentum whose matrices are orthogonalized.

The update of ``torch.optim.Muon``, which takes whole matrices alone, of matrices that are split over ranks. Shards of a
matrix are no matrices of their own: orthogonalized one by one, they give another update. So each of the ranks that have
parts of some matrices gathers one of them, as its owner, and sends its update back.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim._muon import DEFAULT_A, DEFAULT_B, DEFAULT_C, DEFAULT_NS_STEPS, EPS, _adjust_lr

from shardlab.runtime.distributed import local


class Muon(Optimizer):
    """Muon for the groups with a true ``matrix``, torch.optim.AdamW for the others."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        weight_decay: float,
        arithmetic: torch.dtype,
        momentum: float = 0.95,
        nesterov: bool = True,
        fused: bool = False,
        **of_adamw: Any,
    ) -> None:
        """``arithmetic``: data type in which matrices are orthogonalized; that of ``torch.optim.Muon`` is bfloat16."""
        given = [*groups]
        nothing: list[dict[str, Any]] = [{"params": []}]
        matrices = [group for group in given if group["matrix"]]
        others = [group for group in given if not group["matrix"]]
        of_matrices = {"momentum": momentum, "nesterov": nesterov}
        defaults = {"lr": lr, "weight_decay": weight_decay, "fused": fused} | of_matrices
        super().__init__(matrices or nothing, defaults)
        self.arithmetic = arithmetic
        self.others = AdamW(others or nothing, lr=lr, weight_decay=weight_decay, fused=fused, **of_adamw)
        self.others.state = self.state
        self.matrices = self.param_groups[: len(matrices)]
        self.param_groups = self.matrices + self.others.param_groups[: len(others)]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """See torch.optim.Optimizer."""
        for group in self.matrices:
            for parameters in _split_alike(each for each in group["params"] if each.grad is not None):
                averaged = [self._averaged(each, group) for each in parameters]
                for parameter, update in zip(parameters, orthogonalized(averaged, self.arithmetic), strict=True):
                    rate = _adjust_lr(group["lr"], "original", parameter.shape[-2:])
                    local(parameter).mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)
        self.others.step()

    def _averaged(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer


def newton_schulz(matrices: Tensor, arithmetic: torch.dtype) -> Tensor:
    """Bring the singular values of matrices (..., rows, columns) near 1, in the order of ``torch.optim.Muon``."""
    rows, columns = matrices.shape[-2:]
    x = matrices.reshape(-1, rows, columns).to(arithmetic)
    x = x.mT if rows > columns else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(DEFAULT_NS_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=DEFAULT_B, alpha=DEFAULT_C), x, beta=DEFAULT_A)
    return (x.mT if rows > columns else x).to(matrices.dtype).reshape(matrices.shape)


def orthogonalized(updates: list[Any], arithmetic: torch.dtype) -> list[Tensor]:
    """Return this rank's parts of orthogonalized matrices (rows, columns), or stacks of them (experts, rows, columns),
    that are split alike; a collective, of at most as many as ``owners`` says.
    """
    axes = cut_axes(updates[0])
    if not axes:
        return [newton_schulz(local(update), arithmetic) for update in updates]
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, placements = updates[0].device_mesh, updates[0].placements
    whole = [Replicate() if axis in axes else placement for axis, placement in enumerate(placements)]
    summed = [Partial() if axis in axes else placement for axis, placement in enumerate(placements)]
    rank = 0
    for axis in axes:
        rank = rank * mesh.size(axis) + mesh.get_coordinate()[axis]
    shares: dict[int, Tensor] = {}
    for owner, update in enumerate(updates):
        matrices = update.to(mesh.device_type).redistribute(placements=whole).to_local()
        nothing = matrices.new_zeros(()).expand(matrices.shape)
        shares[owner] = newton_schulz(matrices, arithmetic) if owner == rank else nothing
    parts = []
    for owner, update in enumerate(updates):
        whole_shape = {"shape": update.shape, "stride": update.stride()}
        sent = DTensor.from_local(shares.pop(owner), mesh, summed, run_check=False, **whole_shape)
        parts.append(local(sent.redistribute(placements=placements)).to(update.device))
    return parts


def cut_axes(value: Any) -> list[int]:
    """Return the axes of a DTensor's mesh over whose ranks its matrices are split: not stacks of whole ones."""
    placements = getattr(value, "placements", ())
    stacked = value.dim() - 2
    return [
        axis for axis, placement in enumerate(placements) if not placement.is_replicate() and placement.dim >= stacked
    ]


def owners(value: Any) -> int:
    """Return over how many ranks a tensor's matrices are split."""
    return math.prod(value.device_mesh.size(axis) for axis in cut_axes(value))


def _split_alike(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield as many parameters at once as ranks can own one of, of one placement and number of dimensions."""
    groups: dict[Any, list[Tensor]] = defaultdict(list)
    for each in parameters:
        groups[getattr(each, "device_mesh", None), getattr(each, "placements", ()), each.dim()].append(each)
    for alike in groups.values():
        count = owners(alike[0])
        for first in range(0, len(alike), count):
            yield alike[first : first + count]
