"""What a forward pass changes in a model besides its outputs: buffers (batch norm's statistics, codebooks, counts) and
plain attributes of modules.

One rule for every strategy: after each step, all ranks with the same modules have the first one's persistent buffers,
as under DDP. So evaluation, checkpoints and model.safetensors see the same values. Other buffers, and numbers and
generators of random numbers among the attributes, belong to their rank; a checkpoint has each rank's, where they
changed.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from shardlab.runtime.distributed import NOT_TRAFFIC

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes of PyTorch's own: parameters, submodules, hooks, the mode."""
State = list[tuple[nn.Module, dict[str, Any], dict[str, Tensor | None]]]
"""Attributes and buffers of each module."""


class Snapshot:
    """Buffers and attributes of modules as they are when this is made: copies of buffers and of generators of random
    numbers, of other attributes the references.
    """

    def __init__(self, *roots: nn.Module) -> None:
        self._state = _state(module for root in roots for module in root.modules())
        self._copies = {id(value): _copy(value) for value in self._copied()}

    def _copied(self) -> Iterator[Any]:
        for _, attributes, buffers in self._state:
            yield from (value for value in attributes.values() if isinstance(value, torch.Generator))
            yield from (buffer for buffer in buffers.values() if buffer is not None)

    def first_change(self) -> str | None:
        """Return which module's buffer or number differs now; None if none does."""
        for module, attributes, buffers in self._state:
            own = vars(module)
            changed = [
                name
                for name, value in attributes.items()
                if isinstance(value, int | float) and own.get(name, value) != value
            ]
            changed += [
                name
                for name, buffer in buffers.items()
                if buffer is not None and not _same(self._copies[id(buffer)], module._buffers.get(name))
            ]
            if changed:
                return f"{changed[0]} of {type(module).__name__}"
        return None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the modules copies of what is in the snapshot; afterwards they have their own tensors back, untouched:
        autograd may still need them.
        """
        now = _state(module for module, _, _ in self._state)
        copies = {key: _copy(value) for key, value in self._copies.items()}
        try:
            _put(
                (m, _replaced(attributes, copies), _replaced(buffers, copies)) for m, attributes, buffers in self._state
            )
            yield
        finally:
            _put(now)

    def put_back(self) -> None:
        """Give the modules the tensors of the snapshot, with the values of that time."""
        _put(self._state)
        for value in self._copied():
            copy = self._copies[id(value)]
            if isinstance(value, torch.Generator):
                value.set_state(copy.get_state())
            else:
                value.detach().copy_(copy)


@contextmanager
def kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Leave no trace of forward passes without a backward pass afterwards."""
    before = Snapshot(*modules)
    try:
        yield
    finally:
        before.put_back()


class Recomputation:
    """Context of a block's recomputation, which sees the block as it was before its forward pass and changes nothing.

    Micro-batches may have come between the two. The context can be entered more than once.
    """

    def __init__(self, block: nn.Module, inner: Any) -> None:
        """``inner``: another context of the recomputation."""
        self._before, self._inner, self._entered = Snapshot(block), inner, ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._before.in_place())
            stack.enter_context(self._inner)
            self._entered = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Put back what the block has now."""
        return self._entered.__exit__(kind, error, trace)


class SharedBuffers:
    """Persistent buffers of the model's parts on this rank, which its forward passes may change or replace."""

    def __init__(self, parts: Iterable[nn.Module], group: dist.ProcessGroup | None) -> None:
        """``group``: the ranks with the same modules; None for this rank alone."""
        self._group = group
        self._places: dict[int, tuple[nn.Module, str]] = {}
        for module in (module for part in parts for module in part.modules()) if group else ():
            for name, buffer in module._buffers.items():
                # A DTensor is the same on all ranks by itself.
                is_plain = buffer is not None and not hasattr(buffer, "placements")
                if is_plain and name not in module._non_persistent_buffers_set:
                    self._places.setdefault(id(buffer), (module, name))

    def share(self) -> None:
        """Copy the values of the group's first rank to its other ranks; a collective."""
        buffers = [module._buffers[name] for module, name in self._places.values()]
        if self._group is not None and self._group.size() > 1:
            _share([buffer for buffer in buffers if buffer is not None and buffer.numel()], self._group)


def _share(buffers: list[Tensor], group: dist.ProcessGroup) -> None:
    """Copy the values of a group's first rank to its other ranks, in one broadcast."""
    if not buffers:
        return
    # By size, so that each one's bytes start at a multiple of it.
    buffers = sorted(buffers, key=lambda each: -each.element_size())
    joined = torch.cat([buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers])
    setattr(joined, NOT_TRAFFIC, True)
    dist.broadcast(joined, group=group, group_src=0)
    if group.rank() == 0:
        return
    sizes = [buffer.numel() * buffer.element_size() for buffer in buffers]
    with torch.no_grad():
        for buffer, part in zip(buffers, joined.split(sizes), strict=True):
            buffer.copy_(part.view(buffer.dtype).view(buffer.shape))


class LocalState:
    """Of one rank: buffers that are not persistent, and of the modules' attributes numbers and generators of random
    numbers.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        """``parts``: those of the model on this rank, before their first forward pass."""
        self.parts = [*parts]
        self._initial = {name: _digest(value) for name, value in self._values().items()}

    def changed(self) -> dict[str, Tensor]:
        """Return by name what is not as it was constructed; a number as a scalar, of a generator its state."""
        return {
            name: value.detach()
            for name, value in self._values().items()
            if name in self._initial and _digest(value) != self._initial[name]
        }

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set buffers, numbers and generators by name."""
        for name, value in values.items():
            owner, leaf = self._owner(name)
            buffer, attribute = owner._buffers.get(leaf), vars(owner).get(leaf)
            if isinstance(attribute, torch.Generator):
                attribute.set_state(value)
            elif buffer is None:
                setattr(owner, leaf, value.item())
            elif buffer.is_complex() and not value.is_complex():  # on disk complex128 is pairs
                buffer.copy_(torch.view_as_complex(value))
            elif buffer.shape == value.shape and buffer.dtype == value.dtype:
                buffer.copy_(value)  # DDP holds this tensor
            else:
                owner._buffers[leaf] = value.to(buffer.device)

    @property
    def names(self) -> list[str]:
        return [*self._initial]

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        prefix, _, leaf = name.rpartition(".")
        for part in self.parts:
            if prefix in (modules := dict(part.named_modules())) and (
                leaf in modules[prefix]._buffers or leaf in vars(modules[prefix])
            ):
                return modules[prefix], leaf
        raise KeyError(name)

    def _values(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part in self.parts:
            for prefix, module in part.named_modules():
                own: dict[str, Any] = {name: module._buffers.get(name) for name in module._non_persistent_buffers_set}
                own |= {
                    name: _as_tensor(value)
                    for name, value in _attributes(module).items()
                    if not name.startswith("ds_")  # DeepSpeed's own counts
                }
                found |= {f"{prefix}.{name}".lstrip("."): value for name, value in own.items() if value is not None}
        return found


def _state(modules: Iterable[nn.Module]) -> State:
    return [(module, _attributes(module), dict(module._buffers)) for module in modules]


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in OF_EVERY_MODULE}


def _replaced(values: dict[str, Any], copies: dict[int, Any]) -> dict[str, Any]:
    return {name: copies.get(id(value), value) for name, value in values.items()}


def _copy(value: Any) -> Any:
    return value.clone_state() if isinstance(value, torch.Generator) else value.detach().clone()


def _put(state: Iterable[tuple[nn.Module, dict[str, Any], dict[str, Tensor | None]]]) -> None:
    for module, attributes, buffers in state:
        own = vars(module)
        for name in own.keys() - OF_EVERY_MODULE - attributes.keys():
            del own[name]
        own.update(attributes)
        for name in module._buffers.keys() - buffers.keys():
            del module._buffers[name]
        module._buffers.update(buffers)


def _as_tensor(attribute: Any) -> Tensor | None:
    if isinstance(attribute, torch.Generator):
        return attribute.get_state()
    if isinstance(attribute, float):
        return torch.tensor(attribute, dtype=torch.float64)
    return torch.tensor(attribute) if isinstance(attribute, int) and abs(attribute) < 2**63 else None


def _digest(value: Tensor) -> str:
    """Return the SHA-256 of a tensor's type, shape and content: a copy would count as memory of the training."""
    head = f"{value.dtype} {tuple(value.shape)}"
    if value.is_meta or isinstance(value, FakeTensor):
        return head
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.sha256(head.encode() + content).hexdigest()


def _same(first: Tensor, other: Tensor | None) -> bool:
    if other is None:
        return False
    return (
        first.shape == other.shape
        and first.dtype == other.dtype
        and bool(((first == other) | (first.isnan() & other.isnan())).all())
    )
