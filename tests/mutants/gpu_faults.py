"""What would go wrong on a GPU and not on a CPU; the simulated accelerator and tests of single pieces catch it."""

from fault import CHECKPOINT, NATIVE, STEP, ZERO, Fault, S, parity

DEVICE, LAUNCH, SIMULATE, LOOP = f"{S}training/device.py", f"{S}launch", f"{S}runs/simulate.py", f"{S}runs/loop.py"
PIECES, PLAN, GPUS = ("tests/unit/test_device.py",), ("tests/unit/test_plan.py",), ("tests/unit/test_gpus.py",)
SITES, IMAGE = ("tests/unit/test_sites.py",), ("tests/unit/test_image.py",)


def simulated(names: str) -> tuple[str, ...]:
    """Cases of the simulated accelerator."""
    return ("tests/parity/test_accelerator.py", "-k", names)


FAULTS = [
    Fault(
        "ranks forked on a GPU by a torchrun that asked CUDA",
        f"{LAUNCH}/script.py",
        '    if site.device == "cpu":\n        # On a GPU ranks',
        "    if True:\n        # On a GPU ranks",
        SITES,
    ),
    Fault(
        "offloaded shards gathered from the CPU over NCCL",
        NATIVE,
        "cast(Tensor, value).to(self.world.device)",
        "cast(Tensor, value)",
        simulated("fsdp_offload"),
    ),
    Fault("fp16's first overflow ends the run", STEP, "if not self.scaled:", "if True:", PIECES),
    Fault(
        "float8's products of any number of rows",
        f"{S}strategies/float8.py",
        ", pad_inner_dim=True)",
        ")",
        PIECES,
    ),
    Fault(
        "compiled blocks eager after the counted step",
        f"{S}measure/meter.py",
        'torch.compiler.set_stance("force_eager"), ',
        "",
        ("tests/unit/test_watched.py", "-k", "compiled"),
    ),
    Fault(
        "the monitor's thread asks for device 0",
        DEVICE,
        "free, whole = torch.accelerator.get_memory_info(device)",
        "free, whole = torch.accelerator.get_memory_info()",
        PIECES,
    ),
    Fault(
        "the checkpoint's thread has device 0",
        CHECKPOINT,
        ", initializer=device.use, initargs=(world.device,)",
        "",
        simulated("tp-llama2 or goes_on"),
    ),
    Fault(
        "the batches' thread has device 0",
        DEVICE,
        "        use(self.device)\n        with self._stream:",
        "        with self._stream:",
        PIECES,
    ),
    Fault(
        "convolutions round to TF32",
        DEVICE,
        "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False",
        "torch.backends.cuda.matmul.allow_tf32 = False",
        PIECES,
    ),
    Fault(
        "a mesh's groups keep PyTorch's limit",
        LOOP,
        "    distributed.limit_groups(run.site.hang_seconds)\n",
        "",
        parity("each_group and hsdp-mlp"),
    ),
    Fault(
        "no providers of InfiniBand in the image",
        "containers/train.def",
        "g++ ca-certificates libibverbs1 ibverbs-providers",
        "g++ ca-certificates libibverbs1",
        IMAGE,
    ),
    Fault(
        "every rank keeps ZeRO's whole weights for a checkpoint",
        ZERO,
        "for name, value in self.weights() if self.world.main or not to_write}",
        "for name, value in self.weights()}",
        parity("each_group and zero3-mlp"),
    ),
    Fault(
        "offloaded states counted as the device's",
        SIMULATE,
        'if run.options.cpu_offload and run.site.device != "cpu":',
        "if False:",
        PLAN,
    ),
    Fault(
        "plans with the CPU's kernel of attention",
        SIMULATE,
        'return nullcontext() if fused or run.site.device == "cpu" else sdpa_kernel(SDPBackend.MATH)',
        "return nullcontext()",
        PLAN,
    ),
    Fault(
        "recipe.deterministic does nothing",
        LOOP,
        "    if run.recipe.deterministic:\n        device.deterministic()\n",
        "",
        PIECES,
    ),
    Fault("only one device of a process is seeded", DEVICE, ".manual_seed_all(value)", ".manual_seed(value)", PIECES),
    Fault(
        "the peak of the first device alone",
        DEVICE,
        "max(int(torch.accelerator.max_memory_allocated(device)) for device in devices)",
        "int(torch.accelerator.max_memory_allocated(devices[0]))",
        PIECES,
    ),
    Fault(
        "the peak includes what counting held",
        f"{S}measure/meter.py",
        "            forget_peak(self.world.devices)  # counting",
        "            pass  # counting",
        PIECES,
    ),
    Fault(
        "a rank that hangs is not named before NCCL ends it",
        f"{S}training/heartbeat.py",
        'if self.world.device.type != "cpu" and',
        "if False and",
        PIECES,
    ),
    Fault(
        "a neighbor's end over NCCL is taken for a rank's own error",
        f"{S}training/distributed.py",
        "return any(phrase.lower() in str(error).lower()",
        'return any("gloo" in phrase and phrase.lower() in str(error).lower()',
        PIECES,
    ),
    Fault("thousands of collectives enqueued at once", NATIVE, "if number % TOGETHER == 0:", "if False:", PIECES),
    Fault(
        "buffers of offloaded weights on the CPU",
        f"{S}models/weights.py",
        "kept[name].to(buffers or device, copy=True)",
        "kept[name].to(device, copy=True)",
        PIECES,
    ),
    Fault(
        "DeepSpeed takes a GPU where the site says cpu",
        ZERO,
        'if not (dist.is_initialized() and dist.get_backend() == "nccl"):',
        "if not torch.cuda.is_available():",
        PIECES,
    ),
    Fault(
        "a whole global batch on the first GPU",
        LOOP,
        'on_cpu = tasks.of_run(run, task.folder, torch.device("cpu"))',
        "on_cpu = task",
        PIECES,
    ),
    Fault(
        "a driver that is too old is not named",
        f"{LAUNCH}/gpus.py",
        "    if problem := old_driver(gpus, cuda):\n        return problem\n",
        "",
        GPUS,
    ),
    Fault(
        "no environment in podman-hpc's container",
        "config/sites/perlmutter.yaml",
        "--env-host, ",
        "",
        SITES,
    ),
    Fault(
        "a stage that needs no GPU asks for one",
        f"{LAUNCH}/slurm.py",
        'if slurm.gpus == "gres":',
        'if site.slurm.gpus == "gres":',
        SITES,
    ),
    Fault(
        "each layer computes its rotary angles",
        f"{S}models/_layers.py",
        "        if key not in self._known:\n",
        "        if True:\n",
        PIECES,
    ),
    Fault(
        "a batch made ahead is not waited for",
        DEVICE,
        "        current.wait_event(done)\n",
        "",
        PIECES,
    ),
    Fault(
        "memory of a batch made ahead given out while it is used",
        DEVICE,
        "            tensor.record_stream(current)\n",
        "            pass\n",
        PIECES,
    ),
    Fault(
        "figures read before they have arrived",
        DEVICE,
        "        if self._arrived is not None:\n            self._arrived.synchronize()\n",
        "",
        PIECES,
    ),
    Fault(
        "what no plan counts is not left free",
        f"{S}report/plan.py",
        "(figures.device_memory_gib - figures.unplanned_gib)",
        "figures.device_memory_gib",
        PLAN,
    ),
]
