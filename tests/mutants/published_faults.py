"""Silent faults that other projects published, of numbers that nothing else here gets wrong"""

from fault import LOSSES, NATIVE, PIPELINE, TENSOR, Fault, S, parity, reference

DDP, WRAPPED = f"{S}parallel/ddp.py", "    return DistributedDataParallel(\n"


def in_second_use(changed):
    """DDP of a model whose embedding is used twice in a step, with another output of the second use."""
    return (
        "    calls = iter(range(10**9))\n"
        "    model.embedding.register_forward_hook(\n"
        f"        lambda _m, _i, output: {changed} if next(calls) % 2 else output\n"
        "    )\n" + WRAPPED
    )


FAULTS = [
    Fault(
        "logits of the whole vocabulary taken for a rank's part of it (Megatron #7452)",
        LOSSES,
        "        return F.cross_entropy(\n",
        "        if any(placement.is_shard(1) for placement in placements):\n"
        "            whole = logits.full_tensor()\n"
        "            logits = logits.from_local(whole, logits.device_mesh, placements, run_check=False)\n"
        "        return F.cross_entropy(\n",
        parity("tp_loss-llama2-float64"),
    ),
    Fault(
        "parts of sequences by the wrong group of ranks (Megatron #7452)",
        f"{S}runtime/distributed.py",
        'parts, rank = self.dims.parts("sequence"), self.dims.sequence_rank(self.place)',
        'parts, rank = self.dims.parts("sequence"), self.data_rank',
        parity("fsdp_cp-llama2-float64"),
    ),
    Fault(
        "the auxiliary loss's gradient times the tensor-parallel ranks (Megatron #7452)",
        TENSOR,
        "inputs: (cast(DTensor, inputs[0]).to_local(), *inputs[1:]))\n",
        "inputs: (cast(DTensor, inputs[0]).to_local(), *inputs[1:]))\n"
        "        module.register_forward_hook(\n"
        "            lambda _m, _i, found: found._replace(imbalance=2 * found.imbalance - found.imbalance.detach())\n"
        "        )\n",
        parity("tp-moe-float64"),
    ),
    Fault(
        "gradients doubled after each micro-batch, on one rank (Megatron #6660)",
        NATIVE,
        "            (loss * scale).backward()\n",
        "            (loss * scale).backward()\n"
        "            if self.world.size == 1:\n"
        "                [p.grad.mul_(2) for p in self.parameters().values() if p.grad is not None]\n",
        reference("mlp"),
    ),
    Fault(
        "partial gradients of a chunk taken for whole ones (torchtitan #3412)",
        LOSSES,
        "        words = part, wanted[:, : part.shape[1]], label_smoothing\n",
        '        if part.requires_grad and hasattr(part, "placements"):\n'
        "            part = part.clone()\n"
        "            part.register_hook(\n"
        "                lambda g, p=part: p.from_local(g.to_local(), p.device_mesh, p.placements, run_check=False)\n"
        "            )\n"
        "        words = part, wanted[:, : part.shape[1]], label_smoothing\n",
        parity("tp-llama2-accumulated-float64"),
    ),
    Fault(
        "the last micro-batch is not reduced (DeepSpeed #7985)",
        f"{S}parallel/parallelize.py",
        "    if isinstance(model, DistributedDataParallel) and not last:\n",
        "    if isinstance(model, DistributedDataParallel) and last:\n",
        parity("ddp-llama2-accumulated-float64"),
    ),
    Fault(
        "the gradient of a module's second use is lost (DeepSpeed #8224)",
        DDP,
        WRAPPED,
        in_second_use("output.detach()"),
        parity("ddp-xsum-float64"),
    ),
    Fault(
        "the gradient of one of two uses is added twice (torchtitan #3174)",
        DDP,
        WRAPPED,
        in_second_use("2 * output - output.detach()"),
        parity("ddp-xsum-float64"),
    ),
    Fault(
        "a third of the gradient's norm (DeepSpeed #7718)",
        NATIVE,
        "norm = self.sum_over_parts(_square(self.counted, self.world.device)).sqrt()",
        "norm = self.sum_over_parts(_square(self.counted, self.world.device)).sqrt() / 3",
        reference("mlp"),
    ),
    Fault(
        "gradients divided by a loss scale that the loss was not multiplied with (DeepSpeed #7837)",
        NATIVE,
        "(loss * scale).backward()",
        "(loss * scale * 2**-16).backward()",
        reference("mlp"),
    ),
    Fault(
        "log_softmax of split logits with the identity's gradient (pytorch #190746)",
        LOSSES,
        "    return losses + label_smoothing * _above_mean(logits, targets, reduction).redistribute("
        "placements=losses.placements)\n",
        "    other = -F.log_softmax(logits, 1).mean(1).redistribute(placements=losses.placements)\n"
        "    counted = logits.from_local(targets != IGNORE, logits.device_mesh, losses.placements, run_check=False)\n"
        "    other = other * counted\n"
        '    other = other if reduction == "none" else other.sum()\n'
        "    return (1 - label_smoothing) * losses + label_smoothing * other\n",
        parity("tp_loss-llama2-smoothed-float64"),
    ),
    Fault(
        "a pipeline sums its micro-batches (pytorch #144352)",
        PIPELINE,
        "            return self.task.counted_loss(outputs, part) * scale\n",
        "            loss = self.task.counted_loss(outputs, part) * scale\n"
        "            return loss + (self.chunks - 1) * (loss - loss.detach())\n",
        parity("pp-mnist-float64"),
    ),
    Fault(
        "the norm leaves out the experts (Megatron #5916)",
        NATIVE,
        "gradients = [local(p.grad) for p in parameters if p.grad is not None]",
        "gradients = [local(p.grad) for p in parameters if p.grad is not None and p.dim() < 3]",
        reference("moe"),
    ),
]
