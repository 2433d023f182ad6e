#!/usr/bin/env python3
"""Train a small model on two ranks; each published fault is a switch of one line.

The collectives are those of spmd_types, so that its checker can read the
programs; without the checker they are torch.distributed's. On one rank, a
program is its own reference.

Example: torchrun --nproc-per-node=2 benchmarks/tools/spmd_programs.py context --fault "keys' gradients not reduced"
"""

import argparse
from typing import Any, NamedTuple

import spmd_types as spmd
import torch
import torch.distributed as dist
from spmd_types import I, P, R, S, V
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 5
WIDTH, HIDDEN, LOW_RANK, VOCABULARY, TOKENS = 8, 12, 2, 16, 8
"""TOKENS: of the batch of ``tensor`` and of the sequence of ``context``; samples of the batch of ``data``."""
SMOOTHING = 0.1
MICRO_BATCHES = 2


class Fault(NamedTuple):
    """A published fault."""

    program: str
    source: str


FAULTS = {
    "row-parallel bias added by each rank": Fault("tensor", "torchtitan #4245"),
    "replicated weight's gradient stays partial": Fault("tensor", "torchtitan #2387, Megatron #7452"),
    "replicated LoRA factor's gradient stays partial": Fault("tensor", "mcore-bridge #173"),
    "label smoothing over the rank's vocabulary": Fault("tensor", "Megatron #7452/1"),
    "gathered logits enter the vocabulary-parallel loss": Fault("tensor", "Megatron #7452/2"),
    "norm over the rank's part": Fault("tensor", "Megatron #5916"),
    "norm counts replicated weights twice": Fault("tensor", "DeepSpeed #8475"),
    "tensor-parallel ranks read other samples": Fault("tensor", "JSC course 2025"),
    "keys' gradients not reduced": Fault("context", "Megatron #1464"),
    "replicated LoRA factor's gradient not reduced": Fault("context", "mcore-bridge #173"),
    "tokens counted per rank": Fault("context", "torchtitan #3257"),
    "last micro-batch not reduced": Fault("data", "DeepSpeed #7985"),
    "no gradient reduced": Fault("data", "TrainCheck x-jxmnop-ddp"),
    "gradients summed, not averaged": Fault("data", "pytorch #162338"),
    "means of micro-batches summed": Fault("data", "DeepSpeed #8154"),
    "Muon on shards": Fault("data", "DeepSpeed #8437"),
    "all ranks read the same samples": Fault("data", "accelerate #3938"),
    "adapters differ by rank": Fault("data", "transformers #48792"),
    "gradients not reset": Fault("data", "TrainCheck stackoverflow-60335387"),
    "optimizer of other parameters": Fault("data", "TrainCheck pytorch-forum-84911"),
}


class Ranks(NamedTuple):
    """The group, and a rank's place in it."""

    group: Any
    rank: int
    size: int


class Weight(NamedTuple):
    """A parameter."""

    name: str
    shape: tuple[int, ...]
    shard: int | None = None
    """Dimension that is split; None if the parameter is replicated."""


class Program(nn.Module):
    """A model, its loss and what happens to its gradients."""

    weights: tuple[Weight, ...]
    replicated: Any = R
    """Type of replicated weights: the gradient of R is reduced by ``reduce``, that of I within backward."""
    batches: Any = S(0)
    """Type of what ``own`` returns."""
    micro_batches = 1

    def __init__(self, ranks: Ranks, fault: str = "", seed: int = 1) -> None:
        super().__init__()
        self.ranks, self.fault = ranks, fault
        generator = torch.Generator().manual_seed(seed)
        others = torch.Generator().manual_seed(seed + ranks.rank)
        self.shards = {weight.name: weight.shard for weight in self.weights if weight.shard is not None}
        for name, shape, shard in self.weights:
            value = torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
            if fault == "adapters differ by rank" and name.startswith("low"):
                value = torch.randn(shape, generator=others, dtype=torch.float64) / shape[-1] ** 0.5
            parameter = nn.Parameter(value if shard is None else self.part(value, shard))
            parameter.tensor_model_parallel = shard is not None  # type: ignore[attr-defined]  # as Megatron-LM marks them
            setattr(self, name, parameter)

    def part(self, whole: Tensor, dim: int = 0) -> Tensor:
        """Return this rank's part of a tensor."""
        return whole.chunk(self.ranks.size, dim)[self.ranks.rank].clone()

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return all samples, (tokens, width), and targets, (tokens)."""
        inputs = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        return inputs, torch.randint(VOCABULARY, (TOKENS,), generator=generator)

    def own(self, whole: Tensor) -> Tensor:
        """Return what this rank reads of a batch."""
        return self.part(whole)

    def kind(self, name: str) -> Any:
        """Return the type of a parameter."""
        return S(self.shards[name]) if name in self.shards else self.replicated

    def annotate(self) -> None:
        """Declare the types of the parameters to the checker."""
        for name, parameter in self.named_parameters():
            spmd.assert_type(parameter, {self.ranks.group: self.kind(name)})

    def annotate_batch(self, inputs: Tensor, targets: Tensor) -> None:
        """Declare the types of what this rank reads."""
        spmd.assert_type(inputs, {self.ranks.group: self.batches})
        spmd.assert_type(targets, {self.ranks.group: self.batches})

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients that there are."""
        return {name: parameter.grad for name, parameter in self.named_parameters() if parameter.grad is not None}

    def annotate_gradients(self) -> None:
        """Declare the types of gradients, by those of the parameters: the checker does not follow backward."""
        for name, gradient in self.gradients().items():
            spmd.assert_type(gradient, {self.ranks.group: self.kind(name).backward_type()})

    def pending(self, value: Tensor) -> Tensor:
        """Declare that the sum over the ranks is meant: global types know where it is, local types do not."""
        group = self.ranks.group
        known = spmd.maybe_get_axis_local_type(value, group) is P
        return value if known else spmd.reinterpret(value, group, src=V, dst=P)

    def sum(self, value: Tensor, kind: Any) -> Tensor:
        """Return the sum over the ranks."""
        return spmd.all_reduce(self.pending(value), self.ranks.group, dst=kind)

    def reduce(self) -> None:
        """Sum the gradients over the ranks."""
        for name, gradient in self.gradients().items():
            self.get_parameter(name).grad = self.sum(gradient, R)

    def finish(self) -> None:
        """Make of the reduced gradients what the optimizer takes."""


class TensorParallel(Program):
    """Tensor parallelism as in Megatron-LM, without sequence parallelism: an MLP with LoRA, and a head."""

    weights = (
        Weight("scale", (WIDTH,)),
        Weight("up", (HIDDEN, WIDTH), shard=0),
        Weight("low_in", (LOW_RANK, WIDTH)),
        Weight("low_out", (HIDDEN, LOW_RANK), shard=0),
        Weight("down", (WIDTH, HIDDEN), shard=1),
        Weight("bias", (WIDTH,)),
        Weight("head", (VOCABULARY, WIDTH), shard=0),
    )
    replicated = I
    batches = I

    def own(self, whole: Tensor) -> Tensor:
        return whole.roll(self.ranks.rank, 0) if self.fault == "tensor-parallel ranks read other samples" else whole

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        group, fault = self.ranks.group, self.fault
        scale, up, low_in, low_out, down, bias, head = self.parameters()
        inputs = inputs * scale
        wide = (
            inputs
            if fault == "replicated weight's gradient stays partial"
            else spmd.convert(inputs, group, src=I, dst=R)
        )
        low = F.linear(inputs, low_in)
        if fault != "replicated LoRA factor's gradient stays partial":
            low = spmd.convert(low, group, src=I, dst=R)
        hidden = F.gelu(F.linear(wide, up) + F.linear(low, low_out))
        if fault == "row-parallel bias added by each rank":
            outputs = self.sum(F.linear(hidden, down, bias), I)
        else:
            outputs = self.sum(F.linear(hidden, down), I) + bias
        logits = F.linear(spmd.convert(outputs, group, src=I, dst=R), head)
        if fault == "gathered logits enter the vocabulary-parallel loss":
            logits = spmd.all_gather(logits, group, src=S(1), dst=R)
        return self.loss(logits, targets).mean()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy of each token, of logits (tokens, this rank's vocabulary), with label smoothing."""
        group, part = self.ranks.group, VOCABULARY // self.ranks.size
        log_sum = self.sum(logits.exp().sum(-1), I).log()
        with spmd.local():  # which targets are this rank's is not a matter of global types
            targets = spmd.convert(targets, group, src=I, dst=R) - spmd.Scalar(self.ranks.rank * part, {group: V})
            own = (targets >= 0) & (targets < part)
            target = logits.gather(-1, targets.clamp(0, part - 1).unsqueeze(-1)).squeeze(-1) * own
            target = self.pending(target)
        target = self.sum(target, I)
        if self.fault == "label smoothing over the rank's vocabulary":
            mean = logits.mean(-1)
        else:
            mean = self.sum(logits.sum(-1), I) / VOCABULARY
        return log_sum - (1 - SMOOTHING) * target - SMOOTHING * mean

    def reduce(self) -> None:
        """Do nothing: gradients are reduced within backward."""

    def finish(self) -> None:
        """Clip the gradients to a norm of 1."""
        squares = {name: gradient.square().sum() for name, gradient in self.gradients().items()}
        sharded = torch.stack([squares[name] for name in self.shards]).sum()
        replicated = torch.stack([squares[name] for name in squares if name not in self.shards]).sum()
        if self.fault == "norm counts replicated weights twice":
            total = self.sum(sharded + replicated, I)
        elif self.fault == "norm over the rank's part":
            total = sharded + replicated
        else:
            total = self.sum(sharded, I) + replicated
        for name, gradient in self.gradients().items():
            self.get_parameter(name).grad = gradient / total.sqrt()


class ContextParallel(Program):
    """Context parallelism: each rank has a part of the sequence, keys and values are gathered."""

    weights = (
        Weight("query", (WIDTH, WIDTH)),
        Weight("key", (WIDTH, WIDTH)),
        Weight("low_in", (LOW_RANK, WIDTH)),
        Weight("low_out", (WIDTH, LOW_RANK)),
        Weight("head", (VOCABULARY, WIDTH)),
    )

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(generator)
        targets[: TOKENS // 4] = -100  # a prompt: the ranks have unequal numbers of tokens
        return inputs, targets

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        group = self.ranks.group
        query, key, low_in, low_out, head = self.parameters()
        queries = F.linear(inputs, query)
        kind = I if self.fault == "keys' gradients not reduced" else R
        keys = spmd.all_gather(F.linear(inputs, key), group, src=S(0), dst=kind)
        values = F.linear(F.linear(inputs, low_in), low_out)
        values = spmd.all_gather(values, group, src=S(0), dst=R)
        mixed = F.softmax(queries @ keys.T, -1) @ values
        losses = F.cross_entropy(F.linear(mixed, head), targets, reduction="sum", ignore_index=-100)
        count = (targets != -100).sum()
        if self.fault != "tokens counted per rank":
            count = self.sum(count, R)
        return self.pending(losses / count)

    def reduce(self) -> None:
        for name, gradient in self.gradients().items():
            if not (self.fault == "replicated LoRA factor's gradient not reduced" and name == "low_in"):
                self.get_parameter(name).grad = self.sum(gradient, R)


class DataParallel(Program):
    """Data parallelism with micro-batches, LoRA and Muon."""

    weights = (
        Weight("up", (HIDDEN, WIDTH)),
        Weight("low_in", (LOW_RANK, WIDTH)),
        Weight("low_out", (HIDDEN, LOW_RANK)),
        Weight("head", (VOCABULARY, HIDDEN)),
    )
    micro_batches = MICRO_BATCHES

    def own(self, whole: Tensor) -> Tensor:
        return (
            whole[: TOKENS // self.ranks.size] if self.fault == "all ranks read the same samples" else self.part(whole)
        )

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        up, low_in, low_out, head = self.parameters()
        hidden = F.gelu(F.linear(inputs, up) + F.linear(F.linear(inputs, low_in), low_out))
        loss = F.cross_entropy(F.linear(hidden, head), targets, reduction="sum") / len(targets)
        if self.fault != "means of micro-batches summed":
            loss = loss / self.micro_batches
        return self.pending(loss)

    def reduce(self) -> None:
        if self.fault != "no gradient reduced":
            super().reduce()

    def finish(self) -> None:
        for name, gradient in self.gradients().items():
            average = gradient if self.fault == "gradients summed, not averaged" else gradient / self.ranks.size
            self.get_parameter(name).grad = self.orthogonal(average) if name == "head" else average

    def orthogonal(self, gradient: Tensor) -> Tensor:
        """Return Muon's update of a whole gradient."""
        if self.fault != "Muon on shards":
            return newton_schulz(gradient)
        shard = spmd.convert(gradient, self.ranks.group, src=R, dst=S(0))
        return spmd.all_gather(newton_schulz(shard), self.ranks.group, src=S(0), dst=R)


def newton_schulz(matrix: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix, roughly, by the iteration of Muon (Jordan et al., 2024)."""
    matrix = matrix / matrix.square().sum().sqrt()
    for _ in range(5):
        square = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.7750 * square + 2.0315 * (square @ square)) @ matrix
    return matrix


PROGRAMS: dict[str, type[Program]] = {"tensor": TensorParallel, "context": ContextParallel, "data": DataParallel}


def train(name: str, ranks: Ranks, fault: str = "", seed: int = 1, typed: bool = False) -> Program:
    """Return a trained program. With typed, its types are declared to the checker."""
    with spmd.no_typecheck():
        model = PROGRAMS[name](ranks, fault, seed)
        trained = model if fault != "optimizer of other parameters" else PROGRAMS[name](ranks, fault, seed)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(seed)
    if typed:
        model.annotate()
        trained.annotate()
    for _ in range(STEPS):
        if fault != "gradients not reset":
            optimizer.zero_grad()
        with spmd.no_typecheck():
            inputs, targets = map(model.own, model.batch(generator))
            parts = [*zip(inputs.chunk(model.micro_batches), targets.chunk(model.micro_batches), strict=True)]
        for number, (some, wanted) in enumerate(parts, 1):
            if fault == "last micro-batch not reduced" and number == len(parts):
                model.reduce()
            if typed:
                model.annotate_batch(some, wanted)
            model(some, wanted).backward()
            if typed:
                model.annotate_gradients()
        if fault != "last micro-batch not reduced":
            model.reduce()
        model.finish()
        optimizer.step()
    return model


def main() -> None:
    """Train one program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--fault", choices=["", *FAULTS], default="")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.program, Ranks(dist.group.WORLD, dist.get_rank(), dist.get_world_size()), args.fault, args.seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
