"""The exercises of the course: files of examples/ with holes. ``scripts/docs.py`` writes them."""

from dataclasses import dataclass

from shardlab.errors import UserError
from shardlab.files import ROOT

FOLDER = ROOT / "examples/exercises"
OPEN = "NotImplemented"
"""In a file: not all of its holes are filled."""


@dataclass(frozen=True)
class Hole:
    """Lines of an example, and what an exercise has in their place."""

    lines: str
    text: str


def _hole(number: int, lines: str, *hints: str) -> Hole:
    """Return the hole of statements: hints, and an error in place of the lines."""
    indent = lines[: len(lines) - len(lines.lstrip())]
    first, *more = hints
    text = [f"Hole {number}: {first}", *(f"  {hint}" for hint in more)]
    comments = "".join(f"{indent}# {line}\n" for line in text)
    return Hole(lines, f'{comments}{indent}raise NotImplementedError("hole {number}")\n')


AVERAGING = """\
    # While the backward pass runs, DDP averages the gradients over the ranks, bucket by bucket.
    ddp_model = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device])
"""
EXERCISES: dict[str, tuple[str, *tuple[Hole, ...]]] = {
    "alone": (
        "ddp",
        Hole('"""DDP: each rank has the whole model', '"""DDP without its D: each rank has the whole model'),
        Hole("; their gradients are averaged.", ", and trains on its own."),
        Hole(AVERAGING, "    ddp_model = model\n"),
        Hole("from torch.nn.parallel import DistributedDataParallel\n", ""),
        Hole("        # DDP divides the sum of the gradients by the number of ranks; the loss is their sum.\n", ""),
        Hole(
            "        # After the backward pass all ranks have the same gradients, so that each computes the same norm.\n",  # noqa: E501
            "",
        ),
        Hole(
            "    # All ranks have the same weights; one of them writes.\n",
            "    # Each rank has other weights; one of them writes.\n",
        ),
    ),
    "ddp": (
        "ddp",
        _hole(
            1,
            AVERAGING,
            "ddp_model, the model in DistributedDataParallel, which averages the gradients over the ranks (1 line).",
            "On GPUs it needs device_ids=[device].",
        ),
        _hole(
            2,
            "        part = batch.tensor_split(ranks)[rank]\n",
            "part, the indices of this rank's samples: part `rank` of `ranks` nearly equal parts (1 line).",
        ),
        _hole(
            3,
            """\
        # The divisor is the number of targets in the whole batch: a mean of the ranks' means would be wrong if their
        # parts are uneven.
        loss = common.loss_sum(ddp_model(x), y) / (len(batch) * targets[0].numel())
        # DDP divides the sum of the gradients by the number of ranks; the loss is their sum.
        (loss * ranks).backward()
""",
            "loss, this rank's summand of the mean over all targets of the whole batch (common.loss_sum adds up),",
            "and its backward pass (2 lines). DDP averages the gradients, but this loss is added up over the ranks.",
        ),
        _hole(
            4,
            "        dist.all_reduce(loss)  # each rank has only its part of the sum\n",
            "loss becomes the mean over the whole batch, on every rank (1 line).",
        ),
    ),
    "fsdp": (
        "fsdp",
        _hole(
            1,
            """\
    for block in common.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
""",
            "shard each of common.blocks(model) over the mesh, then the model (3 lines).",
        ),
        _hole(
            2,
            """\
        # FSDP averages the gradients over the ranks, as DDP does; the loss is the ranks' sum.
        (loss * ranks).backward()
        # Over the shards of all ranks: a DTensor, like the gradients, of which the plain number is taken.
        norm = clip_grad_norm_(model.parameters(), run.recipe.max_grad_norm or math.inf).full_tensor()
""",
            "the backward pass, and norm, a plain tensor: the norm of the whole gradient before clipping (2 lines).",
            "FSDP averages gradients, as DDP does; clip_grad_norm_ of DTensors returns a DTensor.",
        ),
        _hole(
            3,
            """\
    # Every rank sends its shards, one tensor at a time; only rank 0 keeps the whole ones, in the CPU's memory.
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
""",
            "weights, by name the whole tensors on rank 0 (1 line). Which ranks have to call it?",
        ),
    ),
    "tensor_parallel": (
        "tensor_parallel",
        Hole(
            '    "mlp": {"hidden": ColwiseParallel(), "output": RowwiseParallel()},\n',
            """\
    # Hole 1: how `hidden` and `output` are split, so that only the outputs are added up over the ranks (1 line).
    "mlp": NotImplemented,
""",
        ),
        _hole(
            2,
            """\
    # Replaces the weights of these layers by DTensors with this rank's part; others stay whole on every rank.
    parallelize_module(model, mesh, PLANS[run.model.name])
""",
            "split the model over the mesh by its plan (1 line).",
        ),
        _hole(
            3,
            """\
        # All ranks have the same samples and compute the same loss: nothing is divided by the ranks or added up.
        x, y = inputs[batch].to(device), targets[batch].to(device)
        loss = common.loss_sum(model(x), y) / y.numel()
        loss.backward()
""",
            "x and y, this rank's samples, on the device; loss, the mean over the whole batch; the backward pass",
            "(3 lines). Which samples does a rank read, and is anything added up over the ranks?",
        ),
    ),
}
"""By name: the example that it is made from, and the holes, in any order."""


def text(name: str) -> str:
    """Return the text of an exercise.

    Raises:
        UserError: lines of a hole are not in the example, or not once.
    """
    source, *holes = EXERCISES[name]
    path = ROOT / f"examples/{source}.py"
    made = path.read_text(encoding="utf-8")
    for hole in holes:
        if (count := made.count(hole.lines)) != 1:
            raise UserError(
                f"{path.relative_to(ROOT)} has the lines of an exercise {count} times; write them as they are now into "
                f"scripts/shardlab/course/exercises.py: {hole.lines.strip().splitlines()[-1].strip()}"
            )
        made = made.replace(hole.lines, hole.text)
    return made.replace(f"examples/{source}.py", f"examples/exercises/{name}.py")
