"""Every patch: the version that it was reviewed for, its reason, the upstream issue, and when it can go."""

from typing import NamedTuple

TORCH, DEEPSPEED = ("torch", "2.13.0"), ("deepspeed", "0.19.8")
TRANSFORMERS = ("transformers", "5.23.0")
SNAKEMAKE, SLURM_PLUGIN = ("snakemake", "9.27.1"), ("snakemake-executor-plugin-slurm", "2.8.0")


class Patch(NamedTuple):
    """One change of another project's code."""

    name: str
    """``file.function`` in this package."""
    package: str
    """Distribution, as pinned in envs/."""
    version: str
    """The version of it that the patch was reviewed for."""
    issues: tuple[str, ...]
    """Upstream, ``repository#number``; empty where no upstream issue is known."""
    reason: str
    ends: str
    """When the patch can go."""


PATCHES = [
    Patch(
        "transformers_values.no_packed_samples",
        *TRANSFORMERS,
        (),
        "on fake tensors it takes positions for those of packed samples, and makes a mask that no training has",
        "it can be told that there are none",
    ),
    Patch(
        "transformers_values.grouped_experts",
        *TRANSFORMERS,
        (),
        "on fake tensors experts one by one read which have tokens, and grouped ones have no shapes but in bfloat16",
        "PyTorch's shapes of grouped products are those that its kernels have",
    ),
    Patch(
        "transformers_values.unexpected_weights",
        *TRANSFORMERS,
        (),
        "its report of loading leaves out the weights that a class ignores, as those of predictions of several tokens",
        "the report has them",
    ),
    Patch(
        "snakemake_scheduler.install",
        *SNAKEMAKE,
        ("snakemake/snakemake#3955", "snakemake/snakemake#3744", "snakemake/snakemake#4240"),
        "every finished job adds an endless chain of re-evaluations of the ready jobs",
        "Snakemake keeps one pending re-evaluation, and only where the rate limit held jobs back",
    ),
    Patch(
        "snakemake_dag.ancient_inputs_decide_nothing",
        *SNAKEMAKE,
        (),
        "a changed job whose ancient input is made again in the same call does not run, and those after it do; one "
        "that has a missing or another ancient input runs",
        "Snakemake checks jobs that follow others by ancient inputs alone, and runs none because of these",
    ),
    Patch(
        "snakemake_slurm.install",
        *SLURM_PLUGIN,
        ("snakemake/snakemake#4084", "snakemake/snakemake#3438", "snakemake/snakemake-executor-plugin-slurm#109"),
        "a second call starts jobs again that still run for a first one that died, and waits forever for lost ones; "
        "sacctmgr, or a guess by sacct, decides on each account, and may be missing or hang",
        "the plugin attaches to the jobs of an earlier call, ends jobs that Slurm forgot or preempted for good, and "
        "limits its queries",
    ),
    Patch(
        "snakemake_logging.respect_no_color",
        *SNAKEMAKE,
        (),
        "Snakemake colors its lines whatever NO_COLOR (no-color.org) says",
        "Snakemake reads NO_COLOR",
    ),
    Patch(
        "snakemake_logging.replace_terminal_handlers",
        *SNAKEMAKE,
        (),
        "a logger plugin has to be an installed package, which this project is not",
        "Snakemake takes a logger plugin from a workflow's folder",
    ),
    Patch(
        "torch_modules.parameters_on_meta",
        *TORCH,
        (),
        'torch.device("meta") takes the content of buffers, too, which no file of weights has',
        "PyTorch can put the parameters alone on the meta device",
    ),
    Patch(
        "torch_modules.attributes_read",
        *TORCH,
        (),
        "no hook tells that a parameter is read outside of its module's forward, where FSDP has only a shard of it",
        "nn.Module has hooks for attributes",
    ),
    Patch(
        "torch_modules.around_forward",
        *TORCH,
        (),
        "a forward that is set on an object is shared by DataParallel's replicas, bound to the first one's weights",
        "nn.Module can wrap its forward, or DataParallel is no longer a strategy",
    ),
    Patch(
        "torch_modules.with_base",
        *TORCH,
        (),
        "a module around a model of another library would give its weights other names",
        "models of that library are pipelines by themselves",
    ),
    Patch(
        "torch_pipelining.sends_hold_their_tensors",
        *TORCH,
        (),
        "the sends of a fake process group hold nothing, so a plan would miss the memory of what is being sent",
        "the fake process group's work holds its tensors",
    ),
    Patch(
        "torch_dtensor.shapes_uncounted",
        *TORCH,
        ("pytorch/pytorch#183970",),
        "DTensor finds an operator's shape on tensors of whole sizes, which dispatch modes see as a rank's own memory",
        "DTensor's propagation of shapes runs outside of dispatch modes",
    ),
    Patch(
        "torch_distributed.default_group_unbound",
        *TORCH,
        (),
        "new_group asks a gloo group for the backend of the GPU that the default group is bound to",
        "new_group(backend='gloo') works where init_process_group was given a GPU",
    ),
    Patch(
        "torch_storage.resizes",
        *TORCH,
        (),
        "FSDP frees gathered weights by resizing their storage, which no dispatch mode sees",
        "dispatch modes see the resizing of storages",
    ),
    Patch(
        "deepspeed_startup.uncompiled",
        *DEEPSPEED,
        (),
        "DeepSpeed's import of its Muon optimizer compiles a function and imports PyTorch's compiler: 1.5 s per rank",
        "DeepSpeed imports Muon where it is used",
    ),
    Patch(
        "deepspeed_startup.without_shared_memory",
        *DEEPSPEED,
        ("deepspeedai/DeepSpeed#7108", "deepspeedai/DeepSpeed#7625"),
        "on CPUs DeepSpeed compiles an all-reduce over shared memory that only its inference uses: half a minute",
        "DeepSpeed compiles it where it is used, or has a setting for it",
    ),
]
