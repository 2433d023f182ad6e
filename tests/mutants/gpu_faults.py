"""On a GPU and not on a CPU."""

from fault import ACCUMULATED, CHECKPOINT, NATIVE, STEP, ZERO, Fault, S, at

DEVICE, RUNS, SIMULATE, LOOP = (
    f"{S}runtime/device.py",
    f"{S}runs",
    f"{S}plan/simulate.py",
    f"{S}train/loop.py",
)
SIMULATED = at(
    "unit/test_device", "test_the_simulated_accelerator_refuses_what_a_gpu_would_compute_wrongly_or_wait_for"
)
PLANNED = ("tests/unit/test_plan.py",)
REFUSED = "never set one|wait for it first|record_stream|No backend type associated with device type cpu"
"""What the simulated accelerator says of what a GPU would compute wrongly."""


FAULTS = [
    Fault(
        "ranks forked on a GPU by a torchrun that asked CUDA",
        f"{RUNS}/commands.py",
        'if site.device == "cpu" and not (',
        "if not (",
        at("unit/test_sites", "test_sbatch_and_srun_lines_are_the_approved_ones"),
    ),
    Fault(
        "offloaded shards gathered from the CPU over NCCL",
        NATIVE,
        "cast(Tensor, value).to(self.world.device)",
        "cast(Tensor, value)",
        at("parity/test_accelerator", f"test_equals_a_cpu[fsdp_offload-llama2-{ACCUMULATED}-float64]"),
        error=REFUSED,
    ),
    Fault(
        "fp16's first overflow ends the run",
        STEP,
        "if not self.scaled:",
        "if True:",
        at("unit/test_device", "test_a_step_that_fp16_s_loss_scaler_left_out_is_counted_and_no_error"),
    ),
    Fault(
        "the checkpoint's thread has device 0",
        CHECKPOINT,
        ", initializer=device.use, initargs=(world.device,)",
        "",
        at("parity/test_accelerator", "test_a_training_that_goes_on_under_another_strategy_equals_a_cpu"),
        error=REFUSED,
    ),
    Fault(
        "the batches' thread has device 0",
        DEVICE,
        "        use(self.device)\n        with self._stream:",
        "        with self._stream:",
        SIMULATED,
        error=REFUSED,
    ),
    Fault(
        "convolutions round to TF32",
        DEVICE,
        "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cuda.matmul.allow_tf32 = False",
        at("unit/test_device", "test_float32_is_float32"),
    ),
    Fault(
        "a mesh's groups keep PyTorch's limit",
        LOOP,
        "    distributed.limit_groups(run.site.hang_seconds)\n",
        "",
        at(
            "parity/test_parity", "test_each_group_has_the_site_s_limit_and_each_rank_writes_its_part[hsdp-mlp-float64]"
        ),
    ),
    Fault(
        "an image that srun starts is not there for a script's ranks",
        "scripts/shardlab/runs/launchers/srun.py",
        "*self.settings.flags, *options]",
        "*self.settings.flags]",
        at("unit/test_sites", "test_srun_itself_starts_the_image"),
    ),
    Fault(
        "the job's variables lose against those of an image that srun starts",
        "scripts/shardlab/runs/commands.py",
        'container.PROJECT))}", *lines] if options',
        'container.PROJECT))}"] if options',
        at("unit/test_sites", "test_srun_itself_starts_the_image"),
    ),
    Fault(
        "an image of another architecture starts",
        "scripts/shardlab/runs/images.py",
        "in (None, node.machine)",
        "in (None, image.architecture)",
        at(
            "unit/test_image",
            "test_a_job_on_a_node_of_another_architecture_than_the_image_s_starts_no_ranks",
        ),
    ),
    Fault(
        "no providers of InfiniBand in the image",
        "containers/train.def",
        "g++ ca-certificates libibverbs1 ibverbs-providers",
        "g++ ca-certificates libibverbs1",
        at("unit/test_image", "test_every_base_gets_what_nccl_needs_between_nodes"),
    ),
    Fault(
        "every rank keeps ZeRO's whole weights for a checkpoint",
        ZERO,
        "for name, value in self.weights() if self.world.is_rank0 or not to_write}",
        "for name, value in self.weights()}",
        at(
            "parity/test_parity",
            "test_each_group_has_the_site_s_limit_and_each_rank_writes_its_part[zero3-mlp-float32]",
        ),
    ),
    Fault(
        "offloaded states counted as the device's",
        SIMULATE,
        'if run.options.cpu_offload and run.site.device != "cpu":',
        "if False:",
        at("unit/test_plan", "test_what_lies_in_the_cpu_s_memory_is_no_device_s"),
    ),
    Fault(
        "plans with the CPU's kernel of attention",
        SIMULATE,
        'return nullcontext() if fused or run.site.device == "cpu" else sdpa_kernel(SDPBackend.MATH)',
        "return nullcontext()",
        at("unit/test_plan", "test_attention_without_a_kernel_on_the_gpu_keeps_its_scores"),
    ),
    Fault(
        "recipe.deterministic does nothing",
        LOOP,
        "    if run.recipe.deterministic:\n        device.deterministic()\n",
        "",
        at("unit/test_device", "test_the_same_bits_are_asked_for_before_anything_else"),
    ),
    Fault(
        "only one device of a process is seeded", DEVICE, ".manual_seed_all(value)", ".manual_seed(value)", SIMULATED
    ),
    Fault(
        "the peak of the first device alone",
        DEVICE,
        "max(int(torch.accelerator.max_memory_allocated(device)) for device in devices)",
        "int(torch.accelerator.max_memory_allocated(devices[0]))",
        SIMULATED,
    ),
    Fault(
        "the peak includes what counting held",
        f"{S}measure/step_profiler.py",
        "            forget_peak(self.world.devices)  # counting",
        "            pass  # counting",
        at("unit/test_device", "test_the_peak_is_counted_from_after_what_was_profiled"),
    ),
    Fault(
        "a rank that hangs is not named before NCCL ends it",
        f"{S}train/heartbeat.py",
        'if self.world.device.type != "cpu" and',
        "if False and",
        at("unit/test_device", "test_a_hang_is_named_before_nccl_ends_the_process"),
    ),
    Fault(
        "a neighbor's end over NCCL is taken for a rank's own error",
        f"{S}runtime/distributed.py",
        "return any(phrase.lower() in str(error).lower()",
        'return any("gloo" in phrase and phrase.lower() in str(error).lower()',
        at("unit/test_device", "test_an_error_of_gloo_or_nccl_about_another_rank_is_known"),
    ),
    Fault(
        "thousands of collectives enqueued at once",
        NATIVE,
        "if number % TOGETHER == 0:",
        "if False:",
        at("unit/test_device", "test_a_weight_that_is_gathered_waits_for_those_before"),
    ),
    Fault(
        "buffers of offloaded weights on the CPU",
        f"{S}models/weights.py",
        ".to(buffers or device, copy=True)",
        ".to(device, copy=True)",
        at("unit/test_device", "test_buffers_of_offloaded_weights_are_on_the_device"),
    ),
    Fault(
        "DeepSpeed takes a GPU where the site says cpu",
        ZERO,
        'if not (dist.is_initialized() and dist.get_backend() == "nccl"):',
        "if not torch.cuda.is_available():",
        at("unit/test_device", "test_deepspeed_takes_no_gpu_where_the_site_says_cpu"),
    ),
    Fault(
        "a whole global batch on the first GPU",
        LOOP,
        'on_cpu = tasks.task_for(run, task.folder, torch.device("cpu"))',
        "on_cpu = task",
        at("unit/test_device", "test_operations_are_counted_on_shapes_of_the_cpu"),
        error="Cannot access accelerator device",
    ),
    Fault(
        "a driver that is too old is not named",
        f"{RUNS}/gpus.py",
        "    if problem := old_driver(gpus, cuda):\n        return problem\n",
        "",
        at("unit/test_gpus", "test_a_driver_is_as_new_as_cuda_needs"),
    ),
    Fault(
        "no environment in podman-hpc's container",
        "config/sites/perlmutter.yaml",
        "--env-host, ",
        "",
        at("unit/test_sites", "test_podman_mounts_the_folder_of_a_workflow_and_hands_the_environment_on"),
    ),
    Fault(
        "a queue's limit of GPUs in all is that of a node",
        "scripts/shardlab/settings/sites.py",
        "(nodes * gpus_per_node, self.gpus_max),",
        "(gpus_per_node, self.gpus_max),",
        at("unit/test_sites", "test_a_job_that_no_queue_takes_is_refused_with_the_limits"),
    ),
    Fault(
        "a step's second GPU taken for the node's first",
        f"{RUNS}/cpu_binding.py",
        "return numbers[local_rank] if local_rank < len(numbers) else local_rank",
        "return local_rank",
        at("unit/test_cpu_binding", "test_a_rank_runs_on_the_cores_of_its_gpu_only"),
    ),
    Fault(
        "the steps of a shared job meet at one port",
        f"{RUNS}/launchers/srun.py",
        'return "(SLURM_JOB_ID + $$)" if slurm.PACKED in os.environ else "SLURM_JOB_ID"',
        'return "SLURM_JOB_ID"',
        at("unit/test_pack", "test_steps_share_the_job_each_with_its_part_and_a_port_of_its_own"),
    ),
    Fault(
        "a call in an error message names no profile",
        f"{S}errors.py",
        '"--profile", os.environ.get(PROFILE, local), ',
        "",
        at("unit/test_remedies", "test_a_remedy_has_the_profile_of_the_current_call"),
    ),
    Fault(
        "an estimate is for no rule",
        f"{RUNS}/progress.py",
        '"noise_floor": 40.0',
        '"twins": 40.0',
        at("unit/test_rule_names", "test_a_rule_of_that_name_exists"),
    ),
    Fault(
        "each layer computes its rotary angles",
        f"{S}models/_layers.py",
        "        if key not in self._known:\n",
        "        if True:\n",
        at("unit/test_device", "test_rotary_angles_are_computed_once_for_all_layers_and_steps"),
    ),
    Fault(
        "a batch made ahead is not waited for",
        DEVICE,
        "        current.wait_event(done)\n",
        "",
        SIMULATED,
        error=REFUSED,
    ),
    Fault(
        "memory of a batch made ahead given out while it is used",
        DEVICE,
        "            tensor.record_stream(current)\n",
        "            pass\n",
        SIMULATED,
        error=REFUSED,
    ),
    Fault(
        "figures read before they have arrived",
        DEVICE,
        "        if self._arrived is not None:\n            self._arrived.synchronize()\n",
        "",
        SIMULATED,
    ),
    Fault(
        "what no plan counts is not left free",
        f"{S}records/plan.py",
        "(hardware.device_memory_gib - hardware.unplanned_gib)",
        "hardware.device_memory_gib",
        at("unit/test_plan", "test_what_no_plan_counts_is_left_free"),
    ),
    Fault(
        "all devices of a process planned as one",
        f"{S}plan/single_process.py",
        "return self._current",
        "return 0",
        PLANNED,
    ),
    Fault("uneven parts of a batch weigh the same", SIMULATE, "sent += ranks * own", "sent += own", PLANNED),
    Fault(
        "a collective that is not known is left out",
        f"{S}measure/traffic.py",
        "in NAMESPACES and",
        "in () and",
        ("tests/unit/test_collectives.py",),
    ),
]
