"""Write the first steps of a PyTorch training to files, to find where it differs from another training.

    with dump(model, "dumps/two"):
        train()

or, where a loop is no block, `dumped = dump(model, "dumps/two").begin()` before it and `dumped.end()` after it. It
watches every optimizer that has parameters of the model, so the training stays as it is: a plain loop, Hugging Face's
Trainer, accelerate, Lightning or DeepSpeed; DDP, FSDP2, tensor parallelism, torch.compile, autocast. It needs torch,
numpy and safetensors only: copy this file.
"""

import functools
import hashlib
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
"""What torch.compile and activation checkpointing add to names; see ``_names`` for DDP's `module.`."""
SAMPLE_VALUES = 65_536
"""Number of values of each sample's gradient that are written, about."""
ADAM = ("exp_avg", "exp_avg_sq")
"""Tensors of an optimizer's state that are read from DeepSpeed."""


def dump(model: nn.Module, folder: str | Path, steps: int = 4) -> "Dump":
    """Write the first steps of a training: of one inside `with dump(...)`, or between `begin()` and `end()`.

    A step is a step of the optimizer (or of all optimizers that step after the same backward pass), however many
    micro-batches it has. Steps count from 0. A step that a GradScaler skips does not count.

    Files: `initial` (weights), and for each step N `gradients-N` (before clipping, unscaled), `clipped-N` (if they are
    clipped), `weights-N`, `optimizer-N`, and `step-N.json`: settings of the optimizer, loss, hashes of the samples,
    ... Rank 0 writes. If ranks have different parameters (pipeline stages), the first rank of each stage
    writes its own. If ranks hold different gradients of the same parameters, each writes its own, too:
    `unreduced-N.rankR`.

    Args:
        model: the model, before or after it is wrapped, which is called; the files have the names without wrappers.
        folder: it must not contain a dump yet.
        steps: number of steps to write; the training goes on after them.

    Returns:
        A ``Dump``: its methods ``samples`` and ``note`` add what only the training knows.

    Raises:
        FileExistsError: the folder contains a dump.
    """
    return Dump(model, Path(folder), steps)


class Dump:
    """The current step, and the hooks that watch it."""

    def __init__(self, model: nn.Module, folder: Path, steps: int) -> None:
        if any(folder.glob("*.safetensors")):
            raise FileExistsError(f"{folder} already contains a dump: delete it, or name another folder.")
        self.model, self.folder, self.steps = model, folder, steps
        self.stack = ExitStack()
        self.step = 0
        self.is_written = False
        self.suffix: str | bool | None = None
        """End of the names of this rank's files ("" or ".pp1"); False: another rank writes them."""
        self.alike = [0]
        """Ranks with the same parameters as this one."""
        self.inside = 0
        """Greater than 0 in a call that calls others that are watched."""
        self._clear()

    def begin(self) -> "Dump":
        """Watch the training from now on."""
        for handle in (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            # Before FSDP casts what it gets.
            self.model.register_forward_pre_hook(torch.compiler.disable(self._input), with_kwargs=True, prepend=True),
        ):
            self.stack.callback(handle.remove)
        for function in (clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_, torch.nn.utils.clip_grads_with_norm_):
            # Also where it was imported by its name.
            for module in [each for each in [*sys.modules.values()] if getattr(each, "__dict__", None)]:
                for key in [key for key, value in [*vars(module).items()] if value is function]:
                    _replace(self.stack, module, key, self._clip)
        _replace(self.stack, Tensor, "backward", self._backward)
        _replace(self.stack, torch.amp.GradScaler, "step", self._scaled_step)
        if "deepspeed" in sys.modules:
            _replace(self.stack, sys.modules["deepspeed"].DeepSpeedEngine, "step", self._engine_step)
        return self

    __enter__ = begin

    def end(self) -> None:
        """Stop watching.

        Raises:
            RuntimeError: there was nothing to write: no optimizer step, or no gradients.
        """
        self.stack.close()
        if not self.is_written:
            raise RuntimeError(
                f"{self.folder} is empty: while dump watched, no optimizer with parameters of this model took a step. "
                "Give dump the model that is trained; its optimizer must be a torch.optim.Optimizer or DeepSpeed's."
            )

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.stack.close()
        if kind is None:
            self.end()

    def _clear(self) -> None:
        self.stepped: list[Any] = []
        """Optimizers that took this step."""
        self.before: tuple[int, dict[str, Tensor]] | None = None
        """Number of backward passes so far, and the gradients before clipping."""
        self.unreduced: dict[str, Tensor] = {}
        """This rank's own gradients before clipping, where ranks have others."""
        self.files: dict[str, dict[str, Tensor]] = {}
        self.losses: list[Tensor] = []
        self.last: Callable[[], Tensor | None] | None = None
        """The loss of the last backward pass."""
        self.passes = 0
        """Backward passes so far."""
        self.batches: list[list[Any]] = []
        self.rows: list[list[Tensor]] = []
        self.scale = 1.0
        self.facts: dict[str, Any] = {}
        self.settings: list[dict[str, Any]] = []
        """Groups of the optimizers' parameters, with their settings and names."""
        self.sample_targets: list[int] = []

    def _is_active(self) -> bool:
        """Begin a new step if the last one was taken; return whether steps remain to be written."""
        if self.stepped:
            self._clear()
            self.step += 1
        return self.step < self.steps

    def samples(self, losses: Tensor, targets: Any = None) -> None:
        """Write the gradient of each sample of this (micro-)batch. Call it in the reference, before `backward()`.

        Another training's gradient can then be explained as a sum of samples with weights. This costs a backward pass
        per sample; gradients, random states and buffers stay as they are.

        Args:
            losses: (samples,), the parts of the loss: their sum is the loss that `backward()` is called on.
            targets: (samples,), how many targets each has.
        """
        if not self._is_active():
            return
        names = self._trained()
        if any(isinstance(each, DTensor) for each in names):
            raise RuntimeError("samples() needs whole parameters: call it in a reference that is not sharded.")
        for loss in losses.flatten():
            found = torch.autograd.grad(loss, [*names], retain_graph=True, materialize_grads=True, allow_unused=True)
            places = _places(names)
            self.rows.append([_whole(v).flatten()[places[n].to(v.device)] for n, v in zip(places, found, strict=True)])
        self.sample_targets += [] if targets is None else _plain(targets)

    def note(self, ids: Any = None, loss: Any = None) -> None:
        """Add facts to `step-N.json`, before `optimizer.step()`: `ids=batch["id"]`, `loss=reported`.

        `ids` are those of this rank's last batch, instead of hashes. `loss` is what the trainer reports of the step, on
        rank 0.
        """
        if self._is_active() and ids is not None:
            self.batches[-1:] = [_plain(ids)]
            self.facts["hashed"] = None
        if self._is_active() and loss is not None:
            self.facts["reported_loss"] = float(loss)

    # Hooks

    def _input(self, module: nn.Module, args: Any, keywords: Any) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return  # of torch.func, whose tensors have no values of their own
        if module.training and torch.is_grad_enabled() and self._is_active():
            hashed, kind = hashes([keywords, args])
            self.batches.append(hashed)
            self.facts.setdefault("hashed", kind)
            device = next(iter(module.parameters())).device.type
            dtypes = {each.dtype for each in module.parameters()}
            if torch.is_autocast_enabled(device):
                dtypes.add(torch.get_autocast_dtype(device))
            for each in module.modules():
                policy = each._get_fsdp_state()._mp_policy if isinstance(each, FSDPModule) else None
                dtypes |= {policy.param_dtype} if policy and policy.param_dtype else set()
            if floats := [each for each in dtypes if each.is_floating_point]:
                self.facts["dtype"] = str(min(floats, key=lambda each: torch.finfo(each).bits)).removeprefix("torch.")

    def _backward(self, original: Callable[..., Any], tensor: Tensor, *args: Any, **keywords: Any) -> Any:
        if tensor.numel() == 1 and self._is_active():
            self.passes += 1
            # A second pass through the same loss is no other loss.
            if self.last is None or self.last() is not tensor:
                self.losses.append(tensor.detach().clone())
            self.last = weakref.ref(tensor)
        return original(tensor, *args, **keywords)

    def _clip(self, original: Callable[..., Any], parameters: Any, *args: Any, **keywords: Any) -> Any:
        limit = args[0] if args else keywords.get("max_norm")
        if not self.inside and self.step < self.steps:
            if isinstance(parameters, nn.Module):
                clipped = [*parameters.parameters()]
            else:
                clipped = parameters = [parameters] if isinstance(parameters, Tensor) else [*parameters]
            # A backward pass since the last call: that call's step was skipped.
            if self.before is None or self.before[0] != self.passes:
                names = self._names()
                if any(each in names for each in clipped):
                    self.before = self.passes, self._gradients(names)
                    self.unreduced = self._own_gradients(names)
            if self.before and limit is not None and original.__name__ != "clip_grad_value_":
                self.facts["max_grad_norm"] = float(limit)
        self.inside += 1
        try:
            return original(parameters, *args, **keywords)
        finally:
            self.inside -= 1

    def _before_step(self, optimizer: Any, args: Any, keywords: Any) -> tuple[Any, Any] | None:
        self.inside += 1
        closure = keywords.get("closure", args[1] if len(args) > 1 else None)
        if self.inside > 1 or closure is None:
            if self.inside == 1:
                self._gradients_exist(optimizer)
            return None
        is_first = True

        def dumped() -> Any:  # Lightning runs the backward pass and clips in here.
            nonlocal is_first
            self.inside -= 1
            try:
                loss = closure()
            finally:
                self.inside += 1
            if is_first:
                self._gradients_exist(optimizer)
            is_first = False
            return loss

        if "closure" in keywords:
            return args, {**keywords, "closure": dumped}
        return (args[0], dumped, *args[2:]), keywords

    def _gradients_exist(self, optimizer: Any) -> None:
        if optimizer in self.stepped:
            self._is_active()
        if self.step >= self.steps:
            return
        grads = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        has_rate = any(float(group.get("lr", 1)) for group in optimizer.param_groups)
        if grads and not has_rate and not any(bool(each.any()) for each in grads):
            return  # PyTorch's set_optimizer_state_dict makes an optimizer's state by such a step
        names = self._names()
        own = {names[each] for group in optimizer.param_groups for each in group["params"] if each in names}
        if not own:
            return
        if float(getattr(optimizer, "found_inf", None) or 0):
            return  # A fused optimizer, to which a GradScaler gives scaled gradients.
        scale = float(getattr(optimizer, "grad_scale", None) or 1)
        found = self._gradients(names)
        kinds = {"gradients": found}
        unreduced = self._own_gradients(names)
        if self.before and self.before[0] == self.passes:
            if unreduced or not self.unreduced:  # else ranks clip their own gradients, and reduce them then
                kinds = {"gradients": self.before[1], "clipped": found}
            self.unreduced = self.unreduced if unreduced else {}
        else:
            self.unreduced = unreduced
        # What another optimizer has, is its own when it steps; what none has, stays as it is here.
        written = self.files.get("gradients", {})
        kinds = {
            kind: {
                name: value / scale if scale != 1 else value
                for name, value in values.items()
                if name in own or name not in written
            }
            for kind, values in kinds.items()
        }
        self._refuse_parts(own)
        self.settings += _settings(type(optimizer).__name__, optimizer.param_groups, names)
        weights = {} if self.is_written else {name: _whole(each) for each, name in names.items()}
        self._write_before(kinds, weights, names)
        self.stepped.append(optimizer)

    def _after_step(self, optimizer: Any, args: Any, keywords: Any) -> None:
        self.inside -= 1
        if self.inside or self.step >= self.steps or optimizer not in self.stepped:
            return
        names = self._names()
        state = {
            f"{names[each]}//{key}": _whole(value)
            for each, entries in optimizer.state.items()
            if each in names
            for key, value in entries.items()
            if isinstance(value, Tensor) and (value.dim() or (key != "step" and not each.dim()))
        }
        self._write_after({name: _whole(each) for each, name in names.items()}, state)

    def _scaled_step(
        self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **keywords: Any
    ) -> Any:
        self.scale = scaler.get_scale()
        out = original(scaler, optimizer, *args, **keywords)
        own = {*self._names()} & {each for group in optimizer.param_groups for each in group["params"]}
        if own and optimizer not in self.stepped and not self.inside:
            self._clear()  # inf or nan: a step that is skipped
        return out

    def _engine_step(self, original: Callable[..., Any], engine: Any, *args: Any, **keywords: Any) -> Any:
        names = self._names()
        own = engine.is_gradient_accumulation_boundary() and any(each in names for each in engine.module.parameters())
        if not own or self.step >= self.steps:
            return original(engine, *args, **keywords)
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state

        def weights() -> dict[str, Tensor]:
            whole = {name: safe_get_full_fp32_param(each) for each, name in names.items()}
            others = {each: name for each, name in names.items() if whole[name] is None}
            with deepspeed.zero.GatheredParameters([*others]):  # frozen ones, which ZeRO 3 splits, too
                return whole | {name: each.detach().clone() for each, name in others.items()}

        if engine in self.stepped:
            self._is_active()
        scale = float(getattr(engine.optimizer, "loss_scale", None) or 1)
        if getattr(engine.optimizer, "round_robin_gradients", False):
            raise RuntimeError("DeepSpeed cannot say its gradients with round_robin_gradients: set it to false.")
        groups = _engine_groups(engine.optimizer)
        known = {each for group in groups for each in group["params"]}
        unknown = [name for each, name in names.items() if each.requires_grad and each not in known]
        if unknown and not known.isdisjoint(names):
            raise RuntimeError(
                f"{unknown[0]} is in no group of DeepSpeed's optimizer, which then neither reduces its gradient nor "
                "updates it: give it to the optimizer, or freeze it (requires_grad_(False))."
            )
        found = {name: safe_get_full_grad(each) for each, name in names.items() if each.requires_grad}
        found = {name: value / scale for name, value in found.items() if value is not None}
        if engine.gradient_clipping():
            self.facts["max_grad_norm"] = engine.gradient_clipping()
        inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
        self.settings += _settings(type(inner).__name__, groups, names)
        self._write_before({"gradients": self._kept(found)}, {} if self.is_written else weights(), {})
        self.inside += 1
        try:
            out = original(engine, *args, **keywords)
        finally:
            self.inside -= 1
        if not engine.was_step_applied():
            self._clear()
            return out
        self.stepped.append(engine)
        state = {}
        for each, name in names.items() if _has_engine_state(engine, names) else ():
            for key in ADAM if each.requires_grad else ():
                try:
                    state[f"{name}//{key}"] = safe_get_full_optimizer_state(each, key)
                except (AttributeError, KeyError, ValueError, AssertionError):
                    continue  # not Adam
        self._write_after(weights(), {name: value for name, value in state.items() if value is not None})
        return out

    # Tensors

    def _names(self) -> dict[Tensor, str]:
        names: dict[Tensor, str] = {}
        modules = [*self.model.modules()]
        is_sharded = any(getattr(each, "_is_fsdp_managed_module", False) for each in modules)
        if is_sharded and not any(isinstance(each, FSDPModule) for each in modules):
            raise RuntimeError("The parameters are flattened by FSDP1: use FSDP2 (fully_shard; fsdp_version: 2).")
        for name, parameter in self.model.named_parameters():
            for part in WRAPPERS:
                name = name.replace(part, "")
            names[parameter] = name
        while names and all(name.startswith("module.") for name in names.values()):
            names = {parameter: name.removeprefix("module.") for parameter, name in names.items()}
        return names

    def _trained(self) -> dict[Tensor, str]:
        return {parameter: name for parameter, name in self._names().items() if parameter.requires_grad}

    def _gradients(self, names: dict[Tensor, str]) -> dict[str, Tensor]:
        found = {name: _whole(each.grad) for each, name in names.items() if each.grad is not None}
        return self._kept(found)

    def _kept(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy to the host, on the rank that writes; a collective."""
        if self.suffix is None:
            self.suffix = ""
            if dist.is_initialized() and dist.get_world_size() > 1:
                own = sorted(self._names().values())
                ranks = _gathered(own)
                stages = [each for place, each in enumerate(ranks) if each not in ranks[:place]]
                self.suffix = f".pp{stages.index(own)}" if len(stages) > 1 else ""
                self.alike = [place for place, each in enumerate(ranks) if each == own]
                if ranks.index(own) != dist.get_rank():
                    self.suffix = False
        if self.suffix is False:
            return {name: value.new_empty(0) for name, value in tensors.items()}  # only the names matter
        return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}

    def _write_before(
        self, kinds: dict[str, dict[str, Tensor]], weights: dict[str, Tensor], own: dict[Tensor, str]
    ) -> None:
        """Write what an optimizer gets; ``own``: parameters with their names, whose ranks' values are compared."""
        if not kinds["gradients"]:
            raise RuntimeError(
                f"Nothing was written for step {self.step}: all gradients are None when the optimizer takes its step; "
                "backward() was not called; or FSDP has not reduced them (no_sync, set_requires_gradient_sync(False)); "
                "or they are kept elsewhere, as by an engine (ZeRO) that dump does not know."
            )
        if not self.is_written:
            plain = {name: each for each, name in own.items() if not isinstance(each, DTensor)}
            if other := self._other_weights(plain):
                raise RuntimeError(
                    f"{other[1]} is not the same on this rank and on rank {other[0]}. If it is split over these ranks "
                    "in plain tensors (as by Megatron or picotron), dump cannot know how: let each rank write its own "
                    "with safetensors.torch.save_file, as gradients-N.tpR.safetensors (R: the rank), and compare "
                    "with --merge 'NAME=DIM'. If it should be the same, ranks do not begin with the same weights."
                )
            self._save("initial", self._kept(weights))
        self.is_written = True
        for kind, tensors in kinds.items():
            self.files.setdefault(kind, {}).update(tensors)
            self._save(f"{kind}-{self.step}", self.files[kind])
        if self.unreduced:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(self.unreduced, self.folder / f"unreduced-{self.step}.rank{dist.get_rank()}.safetensors")
        self._write_facts()
        if self.rows and self.suffix == "":
            self._write_samples()

    def _other_weights(self, plain: dict[str, Tensor]) -> tuple[int, str] | None:
        """Return a rank with other values of the same parameters, and the first of these. A collective."""
        own = {name: (tuple(each.shape), float(each.detach().double().norm())) for name, each in plain.items()}
        ranks = _gathered(own)
        for rank in self.alike:
            for name, (shape, norm) in ranks[rank].items():
                if name in own and (shape != own[name][0] or abs(norm - own[name][1]) > 1e-6 * max(norm, own[name][1])):
                    return rank, name
        return None

    def _refuse_parts(self, own: set[str]) -> None:
        """Raise a RuntimeError if another rank's optimizer has other parameters than this one's. A collective."""
        ranks = _gathered(sorted(own))
        for rank in self.alike:
            if others := {*ranks[rank]} ^ own:
                raise RuntimeError(
                    f"The optimizers of this rank and of rank {rank} do not have the same parameters (first "
                    f"{min(others)}): the loop splits them over ranks, and dump cannot know when weights are sent. "
                    "Write gradients-N.safetensors and weights-N.safetensors of each step with "
                    "safetensors.torch.save_file, after the weights are sent."
                )

    def _own_gradients(self, names: dict[Tensor, str]) -> dict[str, Tensor]:
        """Return this rank's gradients of plain parameters, if a rank with the same parameters has others; nothing if
        all are alike. A collective.
        """
        own = {
            name: _whole(each.grad).to("cpu", copy=True).contiguous()
            for each, name in names.items()
            if len(self.alike) > 1 and each.grad is not None and not isinstance(each, DTensor)
        }
        every = _gathered({name: float(value.double().norm()) for name, value in own.items()})
        norms = [[every[rank].get(name, 0.0) for rank in self.alike] for name in set().union(*every)]
        return own if any(max(each) - min(each) > 1e-6 * max(each) for each in norms) else {}

    def _write_after(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        self._save(f"weights-{self.step}", self._kept(weights))
        state = self._kept(state)
        self.files.setdefault("optimizer", {}).update(state)
        if self.files["optimizer"]:
            self._save(f"optimizer-{self.step}", self.files["optimizer"])

    def _save(self, name: str, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        if self.suffix is False:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}{self.suffix}.safetensors"
        save_file(tensors, path, metadata)

    def _write_facts(self) -> None:
        facts = dict(self.facts)
        losses = [float(_whole(loss)) / self.scale for loss in self.losses]
        ranks = _gathered({"ids": self.batches, "losses": losses})
        if self.suffix not in ("", ".pp0"):
            return
        sums = [sum(each["losses"]) for each in ranks if each["losses"]]
        facts["world_size"], facts["micro_batches"] = len(ranks), len(self.batches) or len(self.losses)
        if any(each["ids"] for each in ranks):
            facts["ids"] = [each["ids"] for each in ranks]
        facts["groups"] = self.settings
        if sums:
            facts["loss"] = sum(sums) / len(sums)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"step-{self.step}.json").write_text(json.dumps(facts))

    def _write_samples(self) -> None:
        places = _places(self._trained())
        tensors = {
            name: torch.stack(each).cpu() for name, each in zip(places, zip(*self.rows, strict=True), strict=True)
        }
        sizes = {name: each.numel() for each, name in self._trained().items()}
        tensors |= {f"{name}//index": index for name, index in places.items() if len(index) < sizes[name]}
        ids = [each for batch in self.batches for each in batch]
        metadata = {"targets": json.dumps(self.sample_targets)} if self.sample_targets else {}
        if len(ids) == len(self.rows):
            metadata["ids"] = json.dumps(ids)
        self._save(f"samples-{self.step}", tensors, metadata)


def _replace(stack: ExitStack, owner: Any, name: str, hook: Callable[..., Any]) -> None:
    """Replace a function by a hook that is called with it as the first argument."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **keywords: Any) -> Any:
        return hook(original, *args, **keywords)

    setattr(owner, name, replacement)
    stack.callback(setattr, owner, name, original)


def _engine_groups(optimizer: Any) -> list[dict[str, Any]]:
    """Return DeepSpeed's groups of parameters with the model's own parameters, which ZeRO flattens."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    if of_zero3 := getattr(optimizer, "trainable_param_groups", None):
        return [groups[each["_ds_source_param_group_id"]] | {"params": each["params"]} for each in of_zero3]
    own = (getattr(optimizer, f"{kind}_groups", None) for kind in ("bit16", "bf16", "fp16"))
    return [
        group | {"params": each} for group, each in zip(groups, next(filter(None, own), []), strict=False)
    ] or groups


def _settings(kind: str, groups: list[dict[str, Any]], names: dict[Tensor, str]) -> list[dict[str, Any]]:
    """Return the settings of groups of parameters that are numbers or words, the names of their parameters, and the
    ``kind`` of optimizer.
    """

    def plain(value: Any) -> Any:
        value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        return value if isinstance(value, (bool, int, float, str)) else None

    return [
        {key: plain(value) for key, value in group.items() if key != "params" and plain(value) is not None}
        | {"optimizer": kind, "params": [names[each] for each in group["params"] if each in names]}
        for group in groups
    ]


def _has_engine_state(engine: Any, names: dict[Tensor, str]) -> bool:
    """Return whether all ranks can read Adam's state; to read it is a collective, in which none may be missing."""
    if getattr(engine.optimizer, "_hp_optimizer_states_linked", False):
        # ZeRO 1 and 2 look for it after the step of the first group of parameters, when the others have none yet.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    parts = [getattr(each, "_hp_mapping", None) for each in names]
    found = all({*ADAM} <= {*(part.optim_fragment or ())} for part in parts if part is not None)
    return all(_gathered(found))


def _gathered(own: Any) -> list[Any]:
    """Return what each rank has; a collective."""
    ranks = [own] * (dist.get_world_size() if dist.is_initialized() else 1)
    if dist.is_initialized():
        dist.all_gather_object(ranks, own)
    return ranks


def _whole(value: Tensor) -> Tensor:
    """Return a whole tensor; a collective if it is a DTensor."""
    value = value.detach()
    value = value.to_dense() if value.is_sparse else value  # gradients of embeddings
    return value.full_tensor() if isinstance(value, DTensor) else value


def _plain(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, Tensor) else list(values)


def _places(names: dict[Tensor, str]) -> dict[str, Tensor]:
    of_all = sum(each.numel() for each in names)
    return {name: sketch(each.numel(), of_all, SAMPLE_VALUES) for each, name in names.items()}


def sketch(size: int, of_all: int, most: int) -> Tensor:
    """Return the flat indices of those values of a parameter that are kept: one drawn in each stretch of its values.

    Args:
        size: number of values of the parameter.
        of_all: that of all parameters.
        most: how many values of all parameters are kept, about.
    """
    every = max(1, -(-of_all // most))
    first = torch.arange(0, size, every)
    draw = torch.Generator().manual_seed(size)
    return (first + torch.randint(every, first.shape, generator=draw)).clamp(max=max(size - 1, 0))


def hashes(inputs: Any) -> tuple[list[str], str]:
    """Return a name of each row of the first tensor, and its dtype.

    A name is a hash of the row; of one of integers with its first and its last run of equal ones as one each: rows that
    are padded to other lengths have the same name.
    """
    found = next(_tensors(inputs), None)
    if found is None:
        return [], ""
    kind = str(found.dtype).removeprefix("torch.") if found.is_floating_point() else "integers"
    rows = _whole(found).cpu()
    rows = rows.to(torch.bfloat16).view(torch.int16) if rows.is_floating_point() else rows.long()
    names = []
    for row in rows:
        if row.dim() == 1 and not found.is_floating_point():
            changes = (row[1:] != row[:-1]).nonzero().flatten().tolist()
            row = row[changes[0] : changes[-1] + 2] if changes else row[:1]
        names.append(hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=8).hexdigest())
    return names, kind


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested inputs, `input_ids` first."""
    if isinstance(values, Tensor):
        if values.dim():
            yield values
    elif hasattr(values, "items"):
        for _, value in sorted(values.items(), key=lambda item: item[0] != "input_ids"):
            yield from _tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
