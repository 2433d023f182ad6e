"""What the modules of a rank's part of a model return in the forward passes of a step."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from shardlab.runtime.distributed import local
from shardlab.runtime.engine import Engine
from shardlab.settings.types import Run

LARGE, EVERY = 10**8, 16
"""Of a model with more parameters only every 16th feature is kept."""


class ModuleOutputs:
    """Hooks on all modules of a rank that keep each one's output in CPU memory, until ``take``."""

    def __init__(self, engine: Engine) -> None:
        """Hook each module, or with recipe.compile only what calls compiled code."""
        run = engine.run
        self.micro_batch = 0
        self._pieces = engine.chunks or 1
        """Forward passes of a micro-batch: a pipeline divides it."""
        self._thinned = engine.parameter_count > LARGE
        self.modules: dict[str, list[str]] = {}
        """Module: names of its class and of those of the modules around it, innermost first."""
        self._kept: dict[tuple[int, str, int], dict[int, Tensor]] = defaultdict(dict)
        """Of each forward pass of a part of the model, what a module returned in its last call."""
        self._pass = 0
        self._chunks = run.recipe.loss_chunks
        self._divided: set[tuple[int, str, int]] = set()
        """Outputs of modules that are called once per chunk of the positions, which one device divides differently."""
        self._order: dict[str, None] = {}
        parts = getattr(engine, "parts", None) or [engine.plain]  # type: ignore[attr-defined]
        if run.options.single_process == "dp":
            parts = engine.models  # type: ignore[attr-defined]  # its copies of the model share their hooks
        for part in parts:
            self._hook(part, _compiled(run, part), inner=run.options.single_process != "dp")

    def clear(self) -> None:
        """Forget what was kept, such as of passes that belong to no step."""
        self.micro_batch = 0
        self._kept.clear()
        self._order.clear()
        self._divided.clear()

    def take(self, rows: list[int]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the outputs since the last call, ``<micro-batch>/output/<module>/<index>``: (rows, ...), and the
        modules in the order in which they returned. ``rows``: those of each micro-batch.
        """
        taken = {}
        for (micro, name, index), calls in self._kept.items():
            # Before its first micro-batch a pipeline runs each stage once, only to infer shapes.
            pieces = [*calls.values()][-self._pieces :]
            # Rows that are no samples, such as tokens, cannot be found again on one device.
            is_divided = (micro, name, index) in self._divided
            if not is_divided and len({piece.shape for piece in pieces}) == 1 and sum(map(len, pieces)) == rows[micro]:
                taken[f"{micro}/output/{name}/{index}"] = torch.cat(pieces)
        order = [*self._order]
        self.clear()
        return taken, order

    def _hook(self, part: nn.Module, compiled: list[nn.Module], *, inner: bool) -> None:
        part.register_forward_pre_hook(lambda *_: self._count())
        inside = {each for block in compiled for each in block.modules() if each is not block}
        for name, module in part.named_modules():
            above = [part.get_submodule(".".join(name.split(".")[:end])) for end in range(name.count(".") + 1)]
            around = [module, *reversed(above)] if name else [module]
            self.modules[name] = [type(each).__name__.removeprefix("FSDP") for each in around]
            is_partial_chain = not getattr(module, "has_last_segment", True)
            if module not in inside and (inner or not name) and not is_partial_chain:
                module.register_forward_hook(lambda _, __, output, name=name: self._keep(name, output))

    def _count(self) -> None:
        self._pass += 1

    def _keep(self, name: str, output: Any) -> None:
        # Not a recomputation in the backward pass, and not a pass without gradients that only infers shapes.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        self._order[name] = None
        for index, value in enumerate(output if isinstance(output, tuple) else (output,)):
            # Integers count tokens of experts, of this rank's part of them.
            if isinstance(value, Tensor) and value.dim() and value.is_floating_point() and not _is_partial(value):
                kept = local(value.detach())
                if self._thinned and kept.dim() > 2:
                    kept = kept[..., ::EVERY]
                key = self.micro_batch, name, index
                if self._chunks > 1 and self._pass in self._kept[key]:
                    self._divided.add(key)
                self._kept[key][self._pass] = kept.to("cpu", copy=True)


def _is_partial(value: Tensor) -> bool:
    return any(placement.is_partial() for placement in getattr(value, "placements", ()))


def _compiled(run: Run, part: nn.Module) -> list[nn.Module]:
    """Return the modules whose forward is compiled, so that hooks inside would change what is compiled."""
    from shardlab.models import matching

    patterns = run.model.blocks if run.recipe.compile == "blocks" else []
    return [module for pattern in patterns for module in matching(part, pattern)]
