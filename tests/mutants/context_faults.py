"""Context parallelism: pieces of sequences, positions and targets, attention over what other ranks have."""

from fault import EVALUATION, MODELS, STEP, Fault, S, parity

CONTEXT, RING = f"{S}parallel/context.py", f"{S}parallel/ring.py"
SEQUENCE = f"{MODELS}/_sequence.py"
CP, CP_XSUM = parity("cp-llama2-float64"), parity("cp-xsum-float64")


FAULTS = [
    Fault(
        "rotary positions begin anew on each rank",
        SEQUENCE,
        "if self.ranks == 1:\n            return torch.arange",
        "if self.ranks > 0:\n            return torch.arange",
        CP,
    ),
    Fault(
        "a ring's backward pass with the log-sum-exp of a block instead of the row's",
        RING,
        "own = gradient[at], query[at], output[at], lse[at]",
        "bias = _bias(mask, documents, split, source, block, query.dtype)\n"
        "                one = attention_block.forward(query[at], keys, values, bias, causal=block.causal)\n"
        "                own = gradient[at], query[at], output[at], one[1]",
        parity("cp_ring-llama2-float64"),
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
        "a layer with a window over positions sees its rank's own part only (accelerate #4177)",
        f"{MODELS}/llama.py",
        "states = self.mlp_norm(x)",
        "states = self.mlp_norm(x)\n        states = states + F.pad(states, (0, 0, 1, 0))[:, :-1]",
        CP,
    ),
    Fault(
        "a ring's backward pass with the gradient of other positions (Megatron #1464)",
        RING,
        "own = gradient[at], query[at], output[at], lse[at]",
        "own = gradient.flip(2)[at], query[at], output[at], lse[at]",
        parity("cp_ring-llama2-float64"),
    ),
]
