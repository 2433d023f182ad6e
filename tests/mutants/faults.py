"""Faults of this field, by hand, by what they are about, with what their diagnosis must say.

Issues in names: where other projects published the same (docs/evidence.md).
"""

from fault import Diagnosis, Fault

S = "scripts/shardlab/"
NATIVE, TENSOR, PIPELINE = f"{S}parallel/native.py", f"{S}parallel/tensor.py", f"{S}parallel/pipeline.py"
ZERO, DDP = f"{S}parallel/zero.py", f"{S}parallel/ddp.py"
CONTEXT, RING, SPLIT = f"{S}parallel/context.py", f"{S}parallel/ring.py", f"{S}parallel/experts.py"
BATCHES, MUON, ORDER = f"{S}runtime/batches.py", f"{S}runtime/muon.py", f"{S}data/order.py"
CHECKPOINT, RESUMING, STEP = f"{S}train/checkpoint.py", f"{S}train/resume.py", f"{S}train/step.py"
EVALUATION, RECIPE, MODELS = f"{S}train/evaluation.py", f"{S}settings/recipe.py", f"{S}models"
EXPERTS, MOE, LOSSES = f"{MODELS}/_experts.py", f"{MODELS}/moe.py", f"{MODELS}/_losses.py"
SEQUENCE = f"{MODELS}/_sequence.py"


def at(file: str, *tests: str) -> tuple[str, ...]:
    """Tests of a file."""
    return tuple(f"tests/{file}.py::{test}" for test in tests)


def reference(workload: str) -> tuple[str, ...]:
    """Equality of ``single`` with the plain loop."""
    return at("parity/test_reference", f"test_single_equals_a_plain_loop[{workload}]")


def parity(name: str) -> tuple[str, ...]:
    """Equality of a case of the parity suite with one device."""
    return at("parity/test_parity", f"test_equals_one_device[{name}]")


def library(name: str) -> tuple[str, ...]:
    """Equality of a model of the library with one device."""
    return at("parity/test_transformers", f"test_equals_one_device[{name}-float64]")


CP = parity("cp-llama2-float64")
CONTINUED = at("parity/test_resume", "test_ends_where_an_uninterrupted_run_ends[single-fsdp-llama2]")
FAULTS = [
    # Between ranks: gradients, split layers, stages, who reads what.
    Fault(
        "the whole factor of a split adapter learns from one rank's part (mcore-bridge #173)",
        NATIVE,
        "            if gradient is not None and gradient.placements != placements:\n",
        "            if gradient is not None and parameter.dim() == 2 and min(parameter.shape) == 2:\n"
        "                local_part = gradient.to_local()\n"
        "                parameter.grad = type(gradient).from_local(local_part, gradient.device_mesh, placements)\n"
        "            elif gradient is not None and gradient.placements != placements:\n",
        parity("tp_sp-llama2-adapted-float64"),
        diagnosis=Diagnosis("tp_sp llama2 adapted", stage="gradient"),
    ),
    Fault(
        "each rank draws its own adapter (transformers #48792, #48873)",
        NATIVE,
        "        if weights:\n            self.ready(",
        "        for part in self.parts if weights else ():\n"
        "            for name, value in part.named_parameters():\n"
        "                local(value.data).mul_(1 + 0.1 * world.rank * name.endswith('lora_A'))\n"
        "        if weights:\n            self.ready(",
        parity("fsdp-llama2-adapted-float64"),
        diagnosis=Diagnosis("fsdp llama2 adapted", stage="initial weights"),
    ),
    Fault(
        "lora_B exported as zeros (mcore-bridge #173)",
        f"{S}models/export.py",
        '.weight"] = value\n',
        '.weight"] = value * name.endswith("lora_A")\n',
        at("unit/test_adapters", "test_peft_computes_the_same_from_what_is_exported"),
    ),
    # What ranks do to each other's gradients.
    Fault(
        "norm for clipping of the local shard alone (Megatron #7452, #7530; DeepSpeed #1801)",
        NATIVE,
        "if not placement.is_replicate():",
        "if False:",
        parity("fsdp-mlp-float64"),
        diagnosis=Diagnosis("fsdp mlp", cause="norm of some"),
    ),
    Fault(
        "gradients of norms not reduced under sequence parallelism (Megatron #7452, #1446)",
        NATIVE,
        "if gradient is not None and gradient.placements != placements:",
        "if False:",
        parity("tp_sp-vit-float64"),
        diagnosis=Diagnosis("tp_sp vit", stage="norm"),
    ),
    Fault(
        "FSDP sums bf16 gradients in bf16 (pytorch #190626)",
        f"{S}parallel/fsdp.py",
        "inside = MixedPrecisionPolicy(low, reduce_dtype=dtype)",
        "inside = MixedPrecisionPolicy(low, reduce_dtype=low)",
        at(
            "parity/test_parity",
            "test_low_precision_trains_and_is_near_full_precision[fsdp-vit-bf16-float32]",
        ),
        unnamed="captures are in full precision",
    ),
    Fault(
        "HSDP's replicas do not average",
        DDP,
        "set_requires_all_reduce(last)",
        "set_requires_all_reduce(False)",
        parity("hsdp-mlp-float64"),
        diagnosis=Diagnosis("hsdp mlp", cause="no gradient"),
    ),
    Fault(
        "gradients summed over the ranks, not averaged (pytorch #162338)",
        STEP,
        "world.dims.loss_parts / step.targets",
        "world.dims.loss_parts**2 / step.targets",
        parity("ddp-mlp-float64"),
        diagnosis=Diagnosis("ddp mlp", cause="factor"),
    ),
    Fault(
        "ZeRO's loss without times gradient_accumulation_steps",
        ZERO,
        "scale * self.run.recipe.gradient_accumulation_steps",
        "scale",
        parity("zero1-llama2-accumulated-float32"),
        diagnosis=Diagnosis("zero1 llama2 accumulated thrice", cause="factor"),
    ),
    Fault(
        "ZeRO does not clip",
        f"{S}settings/deepspeed.py",
        '"gradient_clipping": recipe.max_grad_norm or 0.0',
        '"gradient_clipping": 0.0',
        parity("zero1-llama2-accumulated-float32"),
        diagnosis=Diagnosis("zero1 llama2 accumulated", cause="no clipping"),
    ),
    # What is split inside of layers.
    Fault(
        "a compiled block writes into the gradient of a split embedding's output",
        TENSOR,
        "output: output.clone())",
        "output: output)",
        parity("fsdp_tp-llama2-compiled-float64"),
    ),
    Fault(
        "bias of a row layer added by every rank (torchtitan #4245)",
        TENSOR,
        "    if sequence_parallel:\n        for pattern",
        "    for pattern in [p for p, style in plan.items() if style == 'row']:\n"
        "        for row in matching(model, pattern):\n"
        "            if row.bias is not None:\n"
        "                row.register_forward_hook(lambda m, _, out: out + m.bias.full_tensor())\n"
        "    if sequence_parallel:\n        for pattern",
        parity("tp-mlp-float64"),
        diagnosis=Diagnosis("tp mlp", cause="bias"),
    ),
    Fault(
        "other dropout masks on each rank of a tensor-parallel group",
        BATCHES,
        "number, self.world.loss_part,",
        "number, self.world.rank,",
        at(
            "parity/test_dropout",
            "test_tensor_parallel_ranks_share_the_masks_of_whole_tensors_and_have_their_own_of_split_ones",
        ),
        unnamed="captures are without dropout",
    ),
    # What is cut into stages.
    Fault(
        "a pipeline averages over its micro-batches once more (DeepSpeed #8154, #8152)",
        PIPELINE,
        "scale_grads=False",
        "scale_grads=True",
        parity("pp-mnist-float64"),
        diagnosis=Diagnosis("pp mnist", cause="factor"),
    ),
    Fault(
        "no gradient goes back between the devices of model parallelism",
        f"{S}parallel/model_parallel.py",
        "tuple(self.moved(value, number) for value in state)",
        "tuple(self.moved(value, number).detach() for value in state)",
        parity("mp-mnist-float64"),
        diagnosis=Diagnosis("mp mnist", cause="no gradient"),
    ),
    # Who reads what.
    Fault(
        "every rank trains on the whole batch (accelerate #3938)",
        BATCHES,
        "local = order.samples_of(batch, world.data_rank, world.data_size)",
        "local = batch",
        parity("ddp-mlp-float64"),
        diagnosis=Diagnosis("ddp mlp", cause="other samples"),
    ),
    Fault(
        "tensor-parallel ranks read samples of their own (JSC, December 2025)",
        BATCHES,
        "local = order.samples_of(batch, world.data_rank, world.data_size)",
        "local = order.samples_of(batch, world.data_rank, world.data_size)[:: 1 if world.is_rank0 else -1]",
        parity("tp-llama2-float64"),
        diagnosis=Diagnosis("tp llama2", stage="output"),
    ),
    Fault(
        "the same order in each epoch (accelerate #4195)",
        ORDER,
        "(seed, epoch)).permutation",
        "(seed, 0)).permutation",
        reference("mlp"),
        diagnosis=Diagnosis("single mlp reference", cause="other samples"),
    ),
    # Context parallelism: pieces of sequences, positions and targets, attention over what other ranks have.
    Fault(
        "rotary positions begin anew on each rank",
        SEQUENCE,
        "if self.ranks == 1:\n            return torch.arange",
        "if self.ranks > 0:\n            return torch.arange",
        CP,
        diagnosis=Diagnosis("cp llama2", stage="output"),
    ),
    Fault(
        "a ring's backward pass with the log-sum-exp of a block instead of the row's (Megatron #1503)",
        RING,
        "own = gradient[at], query[at], output[at], lse[at]",
        "bias = _bias(mask, documents, split, source, block, query.dtype)\n"
        "            one = attend(query[at], keys, values, bias, causal=block.causal)\n"
        "            own = gradient[at], query[at], output[at], one[1]",
        parity("cp_ring-llama2-float64"),
        diagnosis=Diagnosis("cp_ring llama2", stage="gradient"),
    ),
    Fault(
        "gradients of gathered keys and values not reduced (pytorch #153016)",
        CONTEXT,
        "parts = all_gather_single_autograd(torch.stack((key, value)).movedim(3, 0).contiguous(), 0, group)",
        "own = torch.stack((key, value)).movedim(3, 0).contiguous()\n"
        "    others = all_gather_single_autograd(own.detach(), 0, group).chunk(split.ranks)\n"
        "    parts = torch.cat([own if n == split.rank else other for n, other in enumerate(others)])",
        CP,
        diagnosis=Diagnosis("cp llama2", stage="gradient"),
    ),
    Fault(
        "the loss of an evaluation times the number of parts of a sequence (torchtitan #3257)",
        EVALUATION,
        "return float(world.sum(total)) / sum(",
        "return world.sequence.ranks * float(world.sum(total)) / sum(",
        CP,
        diagnosis=Diagnosis("cp llama2", stage="evaluation"),
    ),
    Fault(
        "each rank's loss divided by its own number of targets (Megatron #7452)",
        STEP,
        "engine.forward_backward(micro, world.dims.loss_parts / step.targets,",
        'engine.forward_backward(micro, 1 / float((micro.batch["targets"] != -100).sum()),',
        parity("cp-xsum-float64"),
        diagnosis=Diagnosis("cp xsum", cause="means of blocks"),
    ),
    # Mixtures of experts: silent faults of other projects, after which the loss is right and the gradient is wrong.
    Fault(
        "router's gradient from this rank's part of the experts (torchtitan #2387)",
        TENSOR,
        "return tokens, whole.to_local(grad_placements=partial_gradient), ids",
        "return tokens, weights, ids",
        parity("tp-moe-float64"),
        diagnosis=Diagnosis("tp moe", stage="gradient"),
    ),
    Fault(
        "routing weights without a gradient (torchtitan #1805)",
        EXPERTS,
        "weights.flatten()[order, None]",
        "weights.detach().flatten()[order, None]",
        reference("moe"),
        diagnosis=Diagnosis("single moe reference", stage="gradient"),
    ),
    Fault(
        "memory that nobody wrote is the gradient of an idle expert (pytorch #172439)",
        EXPERTS,
        "return gradient.masked_fill((counts == 0)[:, None, None], 0), None",
        "return gradient.masked_fill((counts == 0)[:, None, None], 1), None",
        at("unit/test_experts", "test_the_grouped_product_equals_the_loop_also_for_idle_experts"),
        unnamed="only grouped products have it",
    ),
    Fault(
        "auxiliary loss without its gradient (Automodel #1408)",
        MOE,
        "weighted = (self.auxiliary * length) * imbalance",
        "weighted = (self.auxiliary * length) * imbalance.detach()",
        at("unit/test_experts", "test_balance_losses_of_samples_do_not_depend_on_the_batch_and_reach_the_router"),
        diagnosis=Diagnosis("single moe reference", stage="gradient"),
    ),
    Fault(
        "auxiliary loss by the tokens of a micro-batch (Megatron #2217)",
        EXPERTS,
        "(relative * shares.mean(1)).sum(-1)",
        "(relative.mean(0) * shares.mean((0, 1))).sum().expand(len(x))",
        parity("ddp-moe-float64"),
        diagnosis=Diagnosis("ddp moe", stage="output"),
    ),
    Fault(
        "bias by this rank's load (torchtitan #4154)",
        STEP,
        "engine.balance(tokens.view_as(load)[:, :-1])",
        "engine.balance(load[:, :-1])",
        parity("ddp-moe-float64"),
        diagnosis=Diagnosis("ddp moe", stage="buffers"),
    ),
    Fault(
        "bias of the first layer alone (torchtitan #1593)",
        MOE,
        "if layer is not None:  # on another pipeline stage",
        "if layer is self.layers[0]:",
        reference("moe"),
        diagnosis=Diagnosis("single moe reference", cause="zero"),
    ),
    Fault(
        "tokens count once more when they are recomputed (torchtitan #1689)",
        EXPERTS,
        "load = tokens_per_expert(ids.flatten(1), self.experts)",
        "load = tokens_per_expert(ids.flatten(1), self.experts)\n"
        "        counts = vars(tokens_per_expert)\n"  # outside of the module, which a recomputation leaves as it was
        "        load[0] += counts.pop(id(self), 0)\n"
        "        counts[id(self)] = load.sum(0) if torch._C._current_graph_task_id() >= 0 else 0",
        parity("ddp-moe-accumulated-float64"),
        diagnosis=Diagnosis("single moe accumulated", stage="output"),
    ),
    Fault(
        "top 1 with normalized weights, of which the router learns nothing (minimind #858)",
        EXPERTS,
        "if top_k == 1 and normalize:",
        "if False:",
        at("unit/test_experts", "test_experts_that_cannot_be"),
    ),
    # Experts split over ranks.
    Fault(
        "experts' gradient times the ranks of ep (Megatron #5956)",
        SPLIT,
        "return gradient / ctx.ranks, None",
        "return gradient, None",
        parity("ep-moe-float64"),
        diagnosis=Diagnosis("ep moe", cause="factor of some"),
    ),
    Fault(
        "a rank whose experts have no rows computes nothing, so that they have no gradient (Automodel #2995)",
        SPLIT,
        "results, computed = compute(own[order], received.sum(0, dtype=counts.dtype))",
        "results, computed = own, received.sum()\n    if len(own):\n"
        "        results, computed = compute(own[order], received.sum(0, dtype=counts.dtype))",
        at("parity/test_memory", "test_experts_that_no_token_chooses_are_trained"),
        error=r"Timeout \(>",  # the other ranks wait for its gradient,
        unnamed="no rank of a case is without rows",
    ),
    Fault(
        "norms of replicated gradients counted twice (DeepSpeed #8475)",
        NATIVE,
        "if not placement.is_replicate():",
        "if True:",
        parity("tp-moe-float64"),
        diagnosis=Diagnosis("tp moe", stage="norm"),
    ),
    Fault(
        "auxiliary loss by the load of a part of the sequences (Megatron #5047)",
        EXPERTS,
        "self.over_sequence(load).to(precise)",
        "load.to(precise)",
        parity("cp-moe-float64"),
        diagnosis=Diagnosis("cp moe", stage="output"),
    ),
    # In all strategies: the loss, the optimizer, the best weights, the summary.
    # What the loss is.
    Fault(
        "labels are smoothed over the rank's part of a split vocabulary (Megatron #7452, #737)",
        LOSSES,
        "part.sum(1) / logits.shape[1]",
        "part.mean(1)",
        parity("tp_loss-llama2-smoothed-float64"),
        diagnosis=Diagnosis("tp_loss llama2 smoothed", stage="loss"),
    ),
    Fault(
        "the test loss is a mean of the batches' means",
        EVALUATION,
        "loss += float(task.loss(outputs, batch))",
        "loss += float(task.loss(outputs, batch)) / len(outputs) * run.recipe.eval_batch_size",
        reference("xsum"),
        diagnosis=Diagnosis("single xsum reference", stage="evaluation"),
    ),
    Fault(
        "micro-batches averaged, whatever their size (transformers #34191)",
        STEP,
        "world.dims.loss_parts / step.targets, last",
        "step.samples / step.targets / len(step.micro_batches) / (micro.count or 1), last",
        reference("mlp"),
        diagnosis=Diagnosis("single mlp reference", cause="means of blocks"),
    ),
    # How the optimizer is driven.
    Fault(
        "betas ignored",
        RECIPE,
        'exclude={"name"',
        'exclude={"betas", "name"',
        reference("xsum"),
        diagnosis=Diagnosis("single xsum reference", cause="coefficients of moments"),
    ),
    Fault(
        "Muon orthogonalizes shards (DeepSpeed issue 8437)",
        MUON,
        "placement.dim >= stacked",
        "placement.dim > 1",
        parity("fsdp-llama2-muon-float64"),
        diagnosis=Diagnosis("fsdp llama2 muon", stage="update"),
    ),
    Fault(
        "gradients are never cleared",
        NATIVE,
        "        self.average.update()\n        self.zero_grad()\n",
        "        self.average.update()\n",
        reference("mlp"),
        diagnosis=Diagnosis("single mlp reference", cause="previous gradient"),
    ),
    Fault(
        "only the last micro-batch's gradient counts (DeepSpeed #7967, #7981)",
        NATIVE,
        "            (loss * scale).backward()",
        "            self.optimizer.zero_grad()\n            (loss * scale).backward()",
        reference("mlp"),
        diagnosis=Diagnosis("single mlp reference", cause="lost blocks"),
    ),
    # What is kept and resumed.
    Fault(
        "a run resumes without the optimizer's state (KempnerForge 1f95035)",
        RESUMING,
        '        _load(folder, "optimizer", tensors, world)\n',
        "",
        CONTINUED,
        diagnosis=Diagnosis("fsdp llama2", cause="restored state"),
    ),
    Fault(
        "a run resumes one step too late (KempnerForge #57)",
        CHECKPOINT,
        '{"step": step, "best"',
        '{"step": step + 1, "best"',
        CONTINUED,
        diagnosis=Diagnosis("single llama2 reference", cause="restored state"),
    ),
    Fault(
        "attention across the documents of a row",
        f"{MODELS}/_layers.py",
        "if documents is not None:",
        "if False:",
        reference("instruct"),
    ),
    Fault(
        "a batch made ahead is not waited for",
        f"{S}runtime/device.py",
        "        current.wait_event(done)\n",
        "",
        at("parity/test_accelerator", "test_equals_a_cpu[fsdp-mlp-float64]"),
        error="never set one|wait for it first|record_stream",
    ),
    # Models of the transformers library: pieces in a pipeline, ties over stages, plans that split layers, float64.
    Fault(
        "a parameter of two stages counted twice in the norm (Megatron #7227)",
        PIPELINE,
        "return self.owner[name] == self.rank",
        "return True",
        library("pp-gpt2"),
    ),
    Fault(
        "each stage trains a tied parameter with its own gradient (Megatron #844)",
        PIPELINE,
        "            self._sum_ties()\n",
        "",
        library("pp-gpt2"),
    ),
    Fault(
        "keys of the first heads on every rank",
        f"{S}parallel/library_tensor.py",
        "first = mesh.get_local_rank() * self.heads // mesh.size()",
        "first = 0",
        library("fsdp_tp@tp=4-llama"),
    ),
    Fault(
        "frequencies of the largest position in this rank's part of the sequence",
        f"{MODELS}/_positions.py",
        "return _cut(call(_with_last(position_ids, whole.flatten()[0])))",
        "return call(position_ids)",
        at("parity/test_proofs", "test_a_fault_is_found_and_named[longrope_cp-equal-]"),
    ),
    Fault(
        "gradients of experts as a sum over the ranks that sent tokens",
        SPLIT,
        "_Mean.apply(value.to_local(), mesh.size())",
        "_Mean.apply(value.to_local(), 1)",
        library("ep-mixtral"),
    ),
    # Silent faults that other projects published, of numbers that nothing else here gets wrong
    Fault(
        "parts of sequences by the wrong group of ranks (Megatron #7452)",
        f"{S}runtime/distributed.py",
        'parts, rank = self.dims.parts("sequence"), self.dims.sequence_rank(self.place)',
        'parts, rank = self.dims.parts("sequence"), self.data_rank',
        parity("fsdp_cp-llama2-float64"),
        diagnosis=Diagnosis("fsdp_cp llama2", stage="output"),
    ),
    Fault(
        "gradients doubled after each micro-batch, on one rank (Megatron #6660)",
        NATIVE,
        "            (loss * scale).backward()\n",
        "            (loss * scale).backward()\n"
        "            if self.world.size == 1:\n"
        "                [p.grad.mul_(2) for p in self.parameters().values() if p.grad is not None]\n",
        reference("mlp"),
        diagnosis=Diagnosis("single llama2 thrice", cause="weights of blocks"),
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
        diagnosis=Diagnosis("tp llama2 accumulated", stage="gradient"),
    ),
    Fault(
        "the last micro-batch is not reduced (DeepSpeed #7985)",
        DDP,
        "    if isinstance(model, DistributedDataParallel) and not last:\n",
        "    if isinstance(model, DistributedDataParallel) and last:\n",
        parity("ddp-llama2-accumulated-float64"),
        diagnosis=Diagnosis("ddp llama2 accumulated", cause="not reduced"),
    ),
    Fault(
        "the gradient of a module's second use is lost (DeepSpeed #8224)",
        DDP,
        "    return DistributedDataParallel(\n",
        "    calls = iter(range(10**9))\n"
        "    model.embedding.register_forward_hook(\n"
        "        lambda _m, _i, output: output.detach() if next(calls) % 2 else output\n"
        "    )\n"
        "    return DistributedDataParallel(\n",
        parity("ddp-xsum-float64"),
        diagnosis=Diagnosis("ddp xsum", stage="gradient"),
    ),
    Fault(
        "a third of the gradient's norm (DeepSpeed #7718)",
        NATIVE,
        "norm = self.sum_over_parts(_squared_norm(self.counted, self.world.device)).sqrt()",
        "norm = self.sum_over_parts(_squared_norm(self.counted, self.world.device)).sqrt() / 3",
        reference("mlp"),
        diagnosis=Diagnosis("single llama2 accumulated", cause="norm with a factor"),
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
        diagnosis=Diagnosis("tp_loss llama2 smoothed", stage="gradient"),
    ),
    Fault(
        "the norm leaves out the experts (Megatron #5916)",
        NATIVE,
        "gradients = [local(p.grad) for p in parameters if p.grad is not None]",
        "gradients = [local(p.grad) for p in parameters if p.grad is not None and p.dim() < 3]",
        reference("moe"),
        diagnosis=Diagnosis("ep moe accumulated", stage="norm"),
    ),
]
