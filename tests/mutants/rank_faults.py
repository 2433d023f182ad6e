"""Between ranks: gradients, split layers, stages, who reads what."""

from fault import (
    ACCUMULATED,
    ADAPTED,
    BATCHES,
    EVALUATION,
    LORA,
    MESH,
    NATIVE,
    ORDER,
    PARALLELIZE,
    PIPELINE,
    STEP,
    TASKS,
    TENSOR,
    ZERO,
    ZERO_ACCUMULATED,
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
SEEDS = at(DROPOUT, "test_ranks_with_the_same_activations_draw_the_same_and_all_others_their_own")
RESUMED_MASKS = at(DROPOUT, "test_a_run_that_goes_on_draws_the_masks_of_one_that_did_not_stop")
VALIDATED = at("unit/test_batches", "test_a_training_validates_after_each_epoch_and_at_its_end")

FAULTS = [
    Fault(
        "the whole factor of a split adapter learns from one rank's part",
        NATIVE,
        "            if gradient is not None and gradient.placements != placements:\n",
        "            if gradient is not None and parameter.dim() == 2 and min(parameter.shape) == 2:\n"
        "                local_part = gradient.to_local()\n"
        "                parameter.grad = type(gradient).from_local(local_part, gradient.device_mesh, placements)\n"
        "            elif gradient is not None and gradient.placements != placements:\n",
        parity(f"tp_sp-llama2-{ADAPTED}-float64"),
    ),
    Fault(
        "adapters scaled by alpha alone",
        LORA,
        "scaling=adapter.alpha / adapter.rank",
        "scaling=adapter.alpha",
        reference("llama2_adapted"),
    ),
    Fault(
        "each rank draws its own adapter",
        NATIVE,
        "        if weights:\n            self.ready(",
        "        for part in self.parts if weights else ():\n"
        "            for name, value in part.named_parameters():\n"
        "                local(value.data).mul_(1 + 0.1 * world.rank * name.endswith('lora_A'))\n"
        "        if weights:\n            self.ready(",
        parity(f"fsdp-llama2-{ADAPTED}-float64"),
    ),
    Fault(
        "lora_B exported as zeros",
        f"{S}models/export.py",
        '.weight"] = value\n',
        '.weight"] = value * name.endswith("lora_A")\n',
        at("unit/test_adapters", "test_peft_computes_the_same_from_what_is_exported"),
    ),
    Fault(
        "weights beside an adapter are trained, too",
        LORA,
        "    model.requires_grad_(False)\n",
        "",
        reference("llama2_adapted"),
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
        "clip factor times the square root of the ranks",
        NATIVE,
        "self.run.recipe.max_grad_norm / (norm + 1e-6)",
        "self.run.recipe.max_grad_norm * self.world.size**0.5 / (norm + 1e-6)",
        parity(f"fsdp-llama2-{ACCUMULATED}-float64"),
    ),
    Fault(
        "clips at twice the norm",
        NATIVE,
        "self.run.recipe.max_grad_norm / (norm",
        "2 * self.run.recipe.max_grad_norm / (norm",
        reference("mlp"),
    ),
    Fault("no clipping", NATIVE, "if self.run.recipe.max_grad_norm is not None:", "if False:", reference("mlp")),
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
            "test_low_precision_trains_and_is_near_full_precision[fsdp-vit-precision=bf16-float32]",
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
        ZERO_ACCUMULATED,
    ),
    Fault(
        "ZeRO does not clip",
        f"{S}settings/deepspeed.py",
        '"gradient_clipping": recipe.max_grad_norm or 0.0',
        '"gradient_clipping": 0.0',
        ZERO_ACCUMULATED,
    ),
    Fault(
        "ZeRO steps at each micro-batch",
        f"{S}settings/deepspeed.py",
        '"gradient_accumulation_steps": recipe.gradient_accumulation_steps',
        '"gradient_accumulation_steps": 1',
        ZERO_ACCUMULATED,
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
        "the same dropout masks on all ranks of a split tensor",
        TENSOR,
        "torch.manual_seed(common + rank)",
        "torch.manual_seed(common)",
        SPLIT_MASKS,
    ),
    Fault(
        "other dropout masks on each rank of a tensor-parallel group",
        BATCHES,
        "number, self.world.loss_part,",
        "number, self.world.rank,",
        SPLIT_MASKS,
    ),
    Fault(
        "dropout masks that do not depend on the step",
        BATCHES,
        "(self.order.seed, number, self",
        "(self.order.seed, 0, self",
        SEEDS,
    ),
    Fault(
        "the same dropout masks on all data-parallel ranks",
        BATCHES,
        "self.world.loss_part, self.world.stage)",
        "0, self.world.stage)",
        SEEDS,
    ),
    Fault(
        "dropout masks not seeded by the step, so that a resumed run repeats them",
        STEP,
        "device.seed(world.device, step.seed)",
        "pass",
        RESUMED_MASKS,
    ),
    Fault("validation in training mode", EVALUATION, "engine.train(False)", "pass", RESUMED_MASKS),
    # What is cut into stages.
    Fault(
        "rows that fill a pipeline's batch counted as samples",
        PIPELINE,
        "max(0, min(last, micro.count) - first)",
        "len(rows)",
        parity("pp-mnist-float64"),
    ),
    Fault(
        "a pipeline averages over its micro-batches once more",
        PIPELINE,
        "scale_grads=False",
        "scale_grads=True",
        parity("pp-mnist-float64"),
    ),
    Fault(
        "gradients of a split backward pass keep strides of their own",
        PIPELINE,
        "            self._lay_out_gradients()\n",
        "            pass\n",
        at("parity/test_foreign_models", "test_equals_plain_pytorch[pp_zbv-low_rank_chain]"),
    ),
    Fault(
        "a pipeline's ranks clip each by their own norm",
        PIPELINE,
        "dist.all_reduce(value, group=self.group)",
        "pass",
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
        "every rank trains on the whole batch, and the mesh says so",
        MESH,
        """return self.parts("samples")

    @property
    def copies(self) -> int:
        \"\"\"Number of ranks that hold the same output for the same samples; of a pipeline, only one rank has it.\"\"\"
        return self.size // self.parts("samples", "sequence", "layers")

    def data_rank(self, place: Mapping[str, int]) -> int:
        \"\"\"Return the index of the group of ranks that reads what the rank with these coordinates reads.\"\"\"
        return self._index(place, "samples")
""",
        """return 1

    @property
    def copies(self) -> int:
        return self.size // self.stages

    def data_rank(self, place: Mapping[str, int]) -> int:
        return 0
""",
        parity("ddp-mlp-float64"),
    ),
    Fault(
        "replicas of HSDP read the same samples",
        MESH,
        "rank = rank * self.degree(axis) + place.get(axis, 0)",
        'rank = rank * self.degree(axis) + (place.get(axis, 0) if axis == "dp_shard" else 0)',
        parity("hsdp-mlp-float64"),
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
        "an epoch's last batch is dropped",
        ORDER,
        "return -(-self.samples // self.global_batch_size)",
        "return self.samples // self.global_batch_size",
        reference("mlp"),
    ),
    Fault(
        "the same order in each epoch", ORDER, "(seed, epoch)).permutation", "(seed, 0)).permutation", reference("mlp")
    ),
    Fault(
        "an order that does not depend on the seed",
        ORDER,
        "(seed, epoch)).permutation",
        "(1, epoch)).permutation",
        at("unit/test_order", "test_order_needs_no_state_and_follows_the_seed"),
    ),
    Fault(
        "one epoch too many",
        "scripts/shardlab/settings/recipe.py",
        "self.epochs * steps_per_epoch",
        "(self.epochs + 1) * steps_per_epoch",
        reference("mlp"),
    ),
    Fault(
        "the test split is the validation split",
        f"{TASKS}/__init__.py",
        'f"{split}.safetensors"',
        '''f"{split.replace('test', 'validation')}.safetensors"''',
        reference("mlp"),
    ),
    Fault(
        "the test loss is of the validation split",
        EVALUATION,
        '_outputs(run, task, model, "test")',
        '_outputs(run, task, model, "validation")',
        reference("mlp"),
    ),
    Fault(
        "training samples are also validated on",
        f"{S}data/__init__.py",
        "order[held : 2 * held]",
        "order[2 * held : 3 * held]",
        at("unit/test_embedded_data", "test_no_sample_is_in_two_splits"),
    ),
    # What is prepared.
    Fault(
        "arrays are written as they lie in memory",
        f"{S}data/split_file.py",
        "np.ascontiguousarray(array, self.kind).reshape(-1)",
        'np.asarray(array, self.kind).ravel("K")',
        at("unit/test_prepared_data", "test_color_pictures_are_stored_as_they_are_seen"),
    ),
    Fault(
        "offsets of later parts begin at 0",
        f"{S}data/split_file.py",
        "+ bases.get(name.removesuffix(OFFSETS), 0)",
        "+ 0",
        at("unit/test_prepared_data", "test_the_parts_of_an_encoder_leave_no_trace"),
    ),
    Fault(
        "tokens between two parts are dropped",
        f"{S}data/encoders/language_modelling.py",
        "left = stream[windows * length :].copy()",
        "left = stream[len(stream) :].copy()",
        at("unit/test_prepared_data", "test_the_parts_of_an_encoder_leave_no_trace"),
    ),
    Fault(
        "an error names the row before",
        f"{S}data/samples.py",
        "            yield tuple(sample)\n            self._row += 1\n",
        "            self._row += 1\n            yield tuple(sample)\n",
        at("unit/test_prepared_data", "test_an_error_names_data_set_split_and_row"),
    ),
    Fault(
        "samples of train in other splits are looked up in an unsorted list",
        f"{S}data/overlap.py",
        "            self._train.sort()\n",
        "",
        at("unit/test_prepared_data", "test_samples_of_train_in_another_split_are_counted"),
    ),
    # The order of the data over epochs, steps and splits.
    Fault(
        "max_steps beyond the epochs",
        "scripts/shardlab/settings/recipe.py",
        "min(self.epochs * steps_per_epoch, self.max_steps or 2**63)",
        "(self.max_steps or self.epochs * steps_per_epoch)",
        VALIDATED,
    ),
    Fault(
        "no validation at the end of a training within an epoch",
        BATCHES,
        "(number + 1) % per_epoch == 0 or number + 1 == self.count",
        "(number + 1) % per_epoch == 0",
        VALIDATED,
    ),
    Fault(
        "a rank without samples counts the one that it computes",
        f"{TASKS}/__init__.py",
        "return MicroBatch(self._part(self.batch(split, filled), sequence), count, len(filled))",
        "return MicroBatch(self._part(self.batch(split, filled), sequence), max(count, 1), len(filled))",
        at("unit/test_tasks", "test_loss_sum_and_target_count_do_not_depend_on_how_a_batch_is_cut"),
    ),
    Fault(
        "buckets sort a rank's samples by their numbers",
        BATCHES,
        'local = local[np.argsort(lengths, kind="stable")]',
        'local = np.sort(local)[np.argsort(lengths, kind="stable")]',
        at("unit/test_batches", "test_buckets_sort_a_rank_s_samples_of_a_step"),
    ),
]
