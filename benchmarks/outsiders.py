#!/usr/bin/env python3
"""Compare the parallelism of transformers, and of accelerate, with one process.

The models are those of benchmarks/zoo.py: tiny, random weights, float64, on two
ranks. Compared are the loss and the gradient of every parameter of one batch.
This project's engines have no part in it, but for the last columns.
"""

import argparse
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import accelerate
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers.distributed.configuration_utils import DistributedConfig
from zoo import write_type

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, write_text
from shardlab.models import without_numbers
from shardlab.proof.prove import prove
from shardlab.proof.step_on_ranks import GRADIENT, LOSS, Difference, differences
from shardlab.proof.tiny_runs import tokens
from shardlab.proof.warm_ranks import Answer, Ranks, import_for_ranks

TYPES = (
    *("llama", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3", "cohere2", "granite", "glm4", "gpt2", "apertus"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v3", "llama4_text", "olmoe"),
)
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Largest relative difference that counts as equal. In float64, too, some models compute in float32 in between."""
ABOUT = """# The same models under other trainers

One batch of tiny models with random weights, on two ranks of one machine: the loss and the gradient of every parameter,
against one process in float64. The first columns are the library's own `DistributedConfig` and accelerate's FSDP2, as
released, in float64 where no other dtype is named. Equal is to 1e-5 of a gradient's largest value, as some models
compute in float32 in between, and in float32 to 1e-3. The last columns are this project's strategies for the same, to
1e-9 ([models.md](models.md)). `make zoo` writes this page.

- *Experts under `ep` in float64*: their gradients are half of what they should be. FSDP of PyTorch 2.13 divides twice
  by the factor of `set_gradient_divide_factor` where a mesh has one rank, in float64 and float16. In float32 they are
  right.
- *apertus under `tp`*: the library's plan lacks the activation, whose gradients are then those of one rank's part. Our
  `tp` has the same plan, and is refused before it trains.
- *llama4 under `tp`*: the model changes a view in place, which PyTorch refuses.
"""
OURS = ("tp", "fsdp_ep", "fsdp")
LONGEST = 60
"""Characters of an error on the page."""
Load = Callable[[Path, dict[str, Any]], nn.Module]


def main() -> None:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", default=TYPES, help="model types")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/outsiders.md")
    args = parser.parse_args()
    import_for_ranks()
    torch.set_num_threads(1)  # accelerate's ranks compute in several: never after a fork of a process that did, too
    rows = []
    for kind in args.types:
        rows.append([kind, *cells(kind)])
        print(" | ".join(rows[-1]), flush=True)
    write_text(args.output, page(rows))


def cells(kind: str) -> list[str]:
    """Return what each trainer makes of a type of model."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_type(kind, folder)
        (expected,) = in_forks(1, one_process, folder)
        if expected.failure:
            raise UserError(f"{kind} does not run in one process: {expected.failure}.")
        found = [in_forks(2, compared, name, folder, expected.value)[0] for name in THEIRS]
        ours = {proof.strategy: proof.verdict for proof in prove(folder, dict.fromkeys(OURS))}
    return [*map(cell, found, THEIRS.values()), *(ours[name] for name in OURS)]


def in_forks(count: int, function: Callable[..., Any], *args: Any) -> list[Answer]:
    """Return what a function gives on new ranks: these libraries leave something in their processes."""
    with Ranks(count) as ranks:
        return ranks.call(function, *args)


def cell(found: Answer, trainer: "Trainer") -> str:
    """Format the differences of a trainer, or why there are none."""
    if found.failure:
        if "_plan`" in found.failure:
            return "no plan"
        kind, _, sentence = found.failure.partition(": ")
        sentence = (sentence or kind).partition(". ")[0]
        return f"fails: {textwrap.shorten(sentence, LONGEST, placeholder=' ...').replace('|', '/')}"
    wrong = [each for each in found.value if not each.value <= TOLERANCES[trainer.dtype]]
    if not wrong:
        return "equal"
    worst = max(wrong, key=lambda each: each.value)
    name = without_numbers(worst.name.removeprefix(GRADIENT))
    return f"{len(wrong)} of {len(found.value)} differ, {name} by {100 * worst.value:.0f} %"


def page(rows: list[list[str]]) -> str:
    """Format docs/outsiders.md."""
    head = ["type", *THEIRS, *(f"`{name}`" for name in OURS)]
    torch_version = torch.__version__.partition("+")[0]
    versions = f"transformers {transformers.__version__}, accelerate {accelerate.__version__}, PyTorch {torch_version}."
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([ABOUT, versions, "", *lines]) + "\n"


def one_process(folder: Path) -> dict[str, Tensor]:
    """Write a model's random weights next to its configuration; return its loss and gradients."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(folder)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, **numbers(torch.float64))
    with torch.no_grad():  # norms of ones and biases of zeros would hide mistakes
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return computed(model, torch.from_numpy(tokens()).long())


def compared(name: str, folder: Path, expected: Mapping[str, Tensor]) -> list[Difference]:
    """Return how far a trainer's loss and gradients are from those of one process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    trainer = THEIRS[name]
    whole = torch.from_numpy(tokens()).long()
    model = trainer.load(folder, numbers(trainer.dtype))
    found = computed(model, whole.chunk(size)[rank] if trainer.divides else whole)
    if trainer.divides:
        dist.all_reduce(found[LOSS])
        found[LOSS] /= size
    return [*differences(found, expected)]


def computed(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Return the loss of a batch, tokens (samples, length + 1), and the whole gradients by the parameters' names."""
    model.train()
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return {LOSS: loss.detach().double()} | {
        GRADIENT + name: whole(torch.zeros_like(value) if value.grad is None else value.grad)
        for name, value in model.named_parameters()
    }


def whole(value: Tensor) -> Tensor:
    """Return all of a tensor that may be split."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().double()


def numbers(dtype: torch.dtype) -> dict[str, Any]:
    """Return the words that make a model compute in a dtype: grouped products of experts have no float64."""
    return {"dtype": dtype} | ({"experts_implementation": "eager"} if dtype is torch.float64 else {})


def distributed(**sizes: Any) -> Load:
    """The library's own parallelism."""

    def load(folder: Path, dtype: dict[str, Any]) -> nn.Module:
        model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
            folder, distributed_config=DistributedConfig(**sizes), **dtype
        )
        return model

    return load


def accelerated(folder: Path, dtype: dict[str, Any]) -> nn.Module:
    """Accelerate's FSDP2. It offers that on GPUs alone, so it takes these ranks for such."""
    accelerate.PartialState(cpu=True).distributed_type = accelerate.DistributedType.MULTI_GPU
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **dtype)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    return model  # type: ignore[no-any-return]


class Trainer(NamedTuple):
    """How a trainer loads a model from a folder."""

    load: Load
    divides: bool
    """Whether each rank has samples of its own."""
    dtype: torch.dtype = torch.float64


THEIRS = {
    "transformers tp": Trainer(distributed(tp_size=2), divides=False),
    "transformers ep": Trainer(distributed(fsdp_size=2, ep_size=2), divides=True),
    "transformers ep, float32": Trainer(distributed(fsdp_size=2, ep_size=2), divides=True, dtype=torch.float32),
    "transformers fsdp": Trainer(distributed(fsdp_size=2), divides=True),
    "accelerate fsdp": Trainer(accelerated, divides=True),
}
"""Column: trainer."""


if __name__ == "__main__":
    run_program(main)
