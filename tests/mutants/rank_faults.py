"""Between ranks: gradients, split layers, stages, who reads what."""

from fault import (
    BATCHES,
    NATIVE,
    ORDER,
    PARALLELIZE,
    PIPELINE,
    STEP,
    TENSOR,
    ZERO,
    Fault,
    S,
    at,
    parity,
    reference,
)

DROPOUT = "parity/test_dropout"
SPLIT_MASKS = at(
    DROPOUT, "test_tensor_parallel_ranks_share_the_masks_of_whole_tensors_and_have_their_own_of_split_ones"
)

FAULTS = [
    Fault(
        "the whole factor of a split adapter learns from one rank's part",
        NATIVE,
        "            if gradient is not None and gradient.placements != placements:\n",
        "            if gradient is not None and parameter.dim() == 2 and min(parameter.shape) == 2:\n"
        "                local_part = gradient.to_local()\n"
        "                parameter.grad = type(gradient).from_local(local_part, gradient.device_mesh, placements)\n"
        "            elif gradient is not None and gradient.placements != placements:\n",
        parity("tp_sp-llama2-adapted-float64"),
    ),
    Fault(
        "each rank draws its own adapter",
        NATIVE,
        "        if weights:\n            self.ready(",
        "        for part in self.parts if weights else ():\n"
        "            for name, value in part.named_parameters():\n"
        "                local(value.data).mul_(1 + 0.1 * world.rank * name.endswith('lora_A'))\n"
        "        if weights:\n            self.ready(",
        parity("fsdp-llama2-adapted-float64"),
    ),
    Fault(
        "lora_B exported as zeros",
        f"{S}models/export.py",
        '.weight"] = value\n',
        '.weight"] = value * name.endswith("lora_A")\n',
        at("unit/test_adapters", "test_peft_computes_the_same_from_what_is_exported"),
    ),
    # What ranks do to each other's gradients.
    Fault(
        "norm for clipping of the local shard alone",
        NATIVE,
        "if not placement.is_replicate():",
        "if False:",
        parity("fsdp-mlp-float64"),
    ),
    Fault(
        "gradients of norms not reduced under sequence parallelism",
        NATIVE,
        "if gradient is not None and gradient.placements != placements:",
        "if False:",
        parity("tp_sp-vit-float64"),
    ),
    Fault("DDP never synchronizes", PARALLELIZE, "and not last:", "and True:", parity("ddp-mlp-float64")),
    Fault(
        "FSDP sums bf16 gradients in bf16",
        f"{S}parallel/fsdp.py",
        "inside = MixedPrecisionPolicy(low, reduce_dtype=dtype)",
        "inside = MixedPrecisionPolicy(low, reduce_dtype=low)",
        at(
            "parity/test_parity",
            "test_low_precision_trains_and_is_near_full_precision[fsdp-vit-bf16-float32]",
        ),
    ),
    Fault(
        "HSDP's replicas do not average",
        PARALLELIZE,
        "set_requires_all_reduce(last)",
        "set_requires_all_reduce(False)",
        parity("hsdp-mlp-float64"),
    ),
    Fault(
        "gradients summed over the ranks, not averaged",
        STEP,
        "world.dims.loss_parts / step.targets",
        "world.dims.loss_parts**2 / step.targets",
        parity("ddp-mlp-float64"),
    ),
    Fault(
        "ZeRO's loss without times gradient_accumulation_steps",
        ZERO,
        "scale * self.run.recipe.gradient_accumulation_steps",
        "scale",
        parity("zero1-llama2-accumulated-float32"),
    ),
    Fault(
        "ZeRO does not clip",
        f"{S}settings/deepspeed.py",
        '"gradient_clipping": recipe.max_grad_norm or 0.0',
        '"gradient_clipping": 0.0',
        parity("zero1-llama2-accumulated-float32"),
    ),
    # What is split inside of layers.
    Fault(
        "bias of a row layer added by every rank",
        TENSOR,
        "    if sequence_parallel:\n        for pattern",
        "    for pattern in [p for p, style in plan.items() if style == 'row']:\n"
        "        for row in matching(model, pattern):\n"
        "            if row.bias is not None:\n"
        "                row.register_forward_hook(lambda m, _, out: out + m.bias.full_tensor())\n"
        "    if sequence_parallel:\n        for pattern",
        parity("tp-mlp-float64"),
    ),
    Fault(
        "half of the gradient of a split embedding",
        TENSOR,
        "output: output.clone())",
        "output: (output + output.detach()) / 2)",
        parity("tp-llama2-float64"),
    ),
    Fault(
        "other dropout masks on each rank of a tensor-parallel group",
        BATCHES,
        "number, self.world.loss_part,",
        "number, self.world.rank,",
        SPLIT_MASKS,
    ),
    # What is cut into stages.
    Fault(
        "a pipeline averages over its micro-batches once more",
        PIPELINE,
        "scale_grads=False",
        "scale_grads=True",
        parity("pp-mnist-float64"),
    ),
    Fault(
        "no gradient goes back between the devices of model parallelism",
        f"{S}parallel/model_parallel.py",
        "tuple(self.moved(value, number) for value in state)",
        "tuple(self.moved(value, number).detach() for value in state)",
        parity("mp-mnist-float64"),
    ),
    # Who reads what.
    Fault(
        "every rank trains on the whole batch",
        BATCHES,
        "local = order.samples_of(batch, world.data_rank, world.data_size)",
        "local = batch",
        parity("ddp-mlp-float64"),
    ),
    Fault(
        "tensor-parallel ranks read samples of their own (JSC, December 2025)",
        BATCHES,
        "local = order.samples_of(batch, world.data_rank, world.data_size)",
        "local = order.samples_of(batch, world.data_rank, world.data_size)[:: 1 if world.is_rank0 else -1]",
        parity("tp-llama2-float64"),
    ),
    Fault(
        "a batch's remainder is dropped",
        ORDER,
        "np.array_split(batch, count)",
        "np.split(batch[: len(batch) // count * count], count)",
        parity("ddp-mlp-float64"),
    ),
    Fault(
        "the same order in each epoch", ORDER, "(seed, epoch)).permutation", "(seed, 0)).permutation", reference("mlp")
    ),
    # What is prepared.
    # The order of the data over epochs, steps and splits.
]
