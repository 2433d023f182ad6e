"""Context parallelism: pieces of sequences, positions and targets, attention over what other ranks have."""

from fault import EVALUATION, MODELS, STEP, TASKS, Fault, S, at, parity

CONTEXT, RING = f"{S}parallel/context.py", f"{S}parallel/ring.py"
SEQUENCE = f"{MODELS}/_sequence.py"
CP, CP_XSUM, CP_VIT, RING_XSUM = (
    parity(f"{name}-float64") for name in ("cp-llama2", "cp-xsum", "cp-vit", "cp_ring-xsum")
)


def attention(name: str, ranks: int = 2) -> tuple[str, ...]:
    """Equality of split attention with one process."""
    return at("parity/test_context", f"test_split_sequences_equal_one_process[{ranks}-{name}]")


FAULTS = [
    Fault(
        "the gradient divided by the number of parts of a sequence",
        STEP,
        "world.dims.loss_parts / step.targets",
        "world.data_size / step.targets",
        CP,
    ),
    Fault(
        "rotary positions begin anew on each rank",
        SEQUENCE,
        "if self.ranks == 1:\n            return torch.arange",
        "if self.ranks > 0:\n            return torch.arange",
        CP,
    ),
    Fault(
        "learned positions begin anew on each rank",
        SEQUENCE,
        "return table[self.positions(length, table.device).clamp(max=len(table) - 1)]",
        "return table[:length]",
        CP_XSUM,
    ),
    Fault(
        "targets shifted after the split, so that those at boundaries are wrong",
        f"{TASKS}/__init__.py",
        "                part[name] = sequence.part(part[name], 1)\n",
        "                part[name] = sequence.part(part[name], 1)\n"
        "        if sequence.ranks > 1:\n"
        '            part["targets"] = torch.cat((part["inputs"][:, 1:], part["targets"][:, -1:]), 1)\n',
        CP,
    ),
    Fault(
        "a ring's backward pass with the first step's keys",
        RING,
        "keys, values = passed[:, :, :, block.keys].unbind(0)",
        "keys, values = memory[:, :, :, block.keys].unbind(0)",
        attention("ring"),
    ),
    Fault(
        "a ring's backward pass with the log-sum-exp of a block instead of the row's",
        RING,
        "own = gradient[at], query[at], output[at], lse[at]",
        "bias = _bias(mask, documents, split, source, block, query.dtype)\n"
        "                one = attention_block.forward(query[at], keys, values, bias, causal=block.causal)\n"
        "                own = gradient[at], query[at], output[at], one[1]",
        attention("ring"),
    ),
    Fault(
        "a ring's backward pass with the log-sum-exp of the rank's own keys",
        RING,
        "    lse.copy_(total)",
        "    lse.copy_(total) if lse.requires_grad else None",
        attention("ring"),
    ),
    Fault(
        "gradients of keys and values stay where they are computed",
        RING,
        "of_memory = travelling.arrived()",
        "travelling.arrived()",
        attention("ring"),
    ),
    Fault(
        "gradients of gathered keys and values not reduced",
        CONTEXT,
        "parts = all_gather_single_autograd(torch.stack((key, value)).movedim(3, 0).contiguous(), 0, group)",
        "own = torch.stack((key, value)).movedim(3, 0).contiguous()\n"
        "    others = all_gather_single_autograd(own.detach(), 0, group).chunk(split.ranks)\n"
        "    parts = torch.cat([own if n == split.rank else other for n, other in enumerate(others)])",
        CP,
    ),
    Fault(
        "each rank attends to its own part only",
        CONTEXT,
        "        if isinstance(module, Attention):",
        "        if isinstance(module, Task):",
        CP,
    ),
    Fault(
        "gathered keys stay in the order of head and tail",
        SEQUENCE,
        "if not self.head_tail:\n            return gathered",
        "if self.ranks > 0:\n            return gathered",
        CP,
    ),
    Fault(
        "a ring leaves out later keys of attention that is not causal",
        RING,
        "return _Block(every, every, causal)",
        "return _Block(every, every, causal or source > split.rank)",
        attention("ring"),
    ),
    Fault(
        "causal masks as if a piece began at the first key",
        CONTEXT,
        ".tril(end - length)",
        ".tril()",
        attention("gather"),
    ),
    Fault(
        "the padding mask lost",
        CONTEXT,
        "return attend(query, keys, values, mask)",
        "return attend(query, keys, values)",
        CP_XSUM,
    ),
    Fault(
        "a ring's padding mask of the own part for those of others",
        RING,
        "counted = split.parts(mask, -1)[source]",
        "counted = split.parts(mask, -1)[split.rank]",
        RING_XSUM,
    ),
    Fault(
        "the first sample's padding mask for all of a micro-batch",
        CONTEXT,
        "return attend(query, keys, values, mask)",
        "return attend(query, keys, values, mask if mask is None else mask[:1])",
        CP_XSUM,
    ),
    Fault(
        "the loss of an evaluation times the number of parts of a sequence",
        EVALUATION,
        "return float(world.sum(total)) / sum(",
        "return world.sequence.ranks * float(world.sum(total)) / sum(",
        parity("cp-llama2-float64"),
    ),
    Fault(
        "each rank's loss divided by its own number of targets",
        STEP,
        "engine.forward_backward(micro, world.dims.loss_parts / step.targets,",
        'engine.forward_backward(micro, 1 / float((micro.batch["targets"] != -100).sum()),',
        CP_XSUM,
    ),
    Fault(
        "padding that fills up a sequence counts as targets",
        f"{TASKS}/summarization.py",
        '"inputs": 0, "targets": IGNORE}',
        '"inputs": 0, "targets": 0}',
        CP_XSUM,
    ),
    Fault(
        "padding that fills up a document is attended to",
        f"{TASKS}/summarization.py",
        'whole_sequences: ClassVar = {"mask": False}',
        'whole_sequences: ClassVar = {"mask": True}',
        at("unit/test_tasks", "test_sequences_are_filled_up_and_every_rank_has_another_part"),
    ),
    Fault(
        "each rank has the targets of the class token",
        f"{TASKS}/__init__.py",
        "self.at_first_position.items() if sequence.rank > 0 else ():",
        "self.at_first_position.items() if sequence.rank < 0 else ():",
        at("unit/test_tasks", "test_the_rank_with_the_class_token_has_the_targets"),
    ),
    Fault(
        "what fills up class token and patches is attended to",
        f"{MODELS}/vit.py",
        "[None, None, None] < self.tokens",
        "[None, None, None] < length",
        CP_VIT,
    ),
    Fault(
        "positions and the class token for each rank's own patches alone",
        f"{MODELS}/vit.py",
        "return self.sequence.part(F.pad(x, (0, 0, 0, -self.tokens % self.sequence.count)), 1)",
        "return F.pad(x, (0, 0, 0, -self.tokens % self.sequence.count))[:, : -(-self.tokens // self.sequence.ranks)]",
        CP_VIT,
    ),
    Fault(
        "a layer with a window over positions sees its rank's own part only (accelerate #4177)",
        f"{MODELS}/llama.py",
        "states = self.mlp_norm(x)",
        "states = self.mlp_norm(x)\n        states = states + F.pad(states, (0, 0, 1, 0))[:, :-1]",
        CP,
    ),
    Fault(
        "layers with a state or a window over positions are not refused",
        CONTEXT,
        "if isinstance(module, NEIGHBORS):",
        "if isinstance(module, Task):",
        at("unit/test_tasks", "test_context_parallelism_needs_a_task_and_a_model_that_split_their_positions"),
    ),
    Fault(
        "a ring's backward pass with the gradient of other positions (Megatron #1464)",
        RING,
        "own = gradient[at], query[at], output[at], lse[at]",
        "own = gradient.flip(2)[at], query[at], output[at], lse[at]",
        attention("ring"),
    ),
    Fault(
        "gradients of keys and values end one rank before they are home",
        RING,
        "of_key, of_value = travelling.arrived().to(key.dtype)",
        "of_key, of_value = (travelling.arrived(), of_memory)[1].to(key.dtype)",
        attention("ring"),
    ),
    Fault(
        "a ring's backward pass with a block's output instead of the row's",
        RING,
        "own = gradient[at], query[at], output[at], lse[at]",
        "bias = _bias(mask, documents, split, source, block, query.dtype)\n"
        "                one = attention_block.forward(query[at], keys, values, bias, causal=block.causal)\n"
        "                own = gradient[at], query[at], one[0].to(query.dtype), lse[at]",
        attention("ring"),
    ),
    Fault(
        "Ulysses repeats key heads in turn instead of each for its group",
        CONTEXT,
        ".repeat_interleave(repeats, 2)",
        ".repeat(1, 1, repeats, 1, 1)",
        attention("ulysses", ranks=4),
    ),
]
