"""Sites: where runs take place, how to ask for nodes there, and how ranks start and meet. Data, no code per site."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, StringConstraints, field_validator, model_validator

from shardlab.schema import Strict
from shardlab.settings.devices import Arithmetic

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable: letters, digits and _, no digit first."""
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]*$")]
"""Part of a host's name, or of a network interface's."""


Stage = Literal["init", "plan", "train", "twins", "evaluate", "preflight", "collectives", "split_size"]
"""Stages with jobs of their own."""


class SlurmStage(Strict):
    """What one stage asks Slurm for instead of what the site says for all; null: the same."""

    partition: str | None = Field(None, description="Partition.")
    qos: str | None = Field(None, description="Quality of service.")
    constraint: str | None = Field(None, description="Node features.")
    runtime: PositiveInt | None = Field(None, description="Time limit (minutes).")
    gpus: Literal["none"] | None = Field(
        None, description="none: no GPU is asked for, where the partition takes such jobs; only plan needs none."
    )


class Slurm(Strict):
    """How to ask Slurm for nodes. What is unset is left to the cluster."""

    partition: str | None = Field(None, description="Partition (null: the cluster's default).")
    account: str | None = Field(None, description="Account that is charged (null: yours as Slurm knows it).")
    qos: str | None = Field(None, description="Quality of service (null: the default of partition and account).")
    constraint: str | None = Field(None, description="Node features to ask for (null: any node).")
    gpus: Literal["gres", "gpus-per-node"] | None = Field(
        None, description="How GPUs are asked for, one per rank: --gres or --gpus-per-node (null: no GPUs)."
    )
    gpu_type: str | None = Field(None, description="Type in the GPU request, as in gpu:h200:4 (null: any type).")
    memory_mb_per_rank: PositiveInt = Field(2000, description="Memory of a node, for each rank on it (MiB).")
    runtime: PositiveInt = Field(60, description="Time limit of a training job (minutes).")
    requeue: bool = Field(
        True,
        description="A training that was told so, was preempted or lost its node goes back into the queue under its "
        "job id (false: where the site forbids it; Snakemake then submits it again).",
    )
    flags: list[str] = Field(default=[], description="More flags of sbatch, such as --exclusive.")
    stages: dict[Stage, SlurmStage] = Field(
        default={}, description="Other values of partition, qos, constraint, runtime and gpus for a stage's jobs."
    )

    def of(self, stage: Stage) -> "Slurm":
        """With what is said for one stage put over the rest."""
        over = self.stages.get(stage, SlurmStage())
        values = over.model_dump(exclude_none=True)
        return self.model_copy(update=values | ({"gpus": None} if over.gpus == "none" else {}))


class Srun(Strict):
    """How the ranks of a job start, and how its nodes find the first one."""

    flags: list[str] = Field(default=[], description="More flags of srun, such as --cpu-bind=none.")
    suffix: Host = Field("", description="Put after a node's short host name to get its address (JURECA: i).")
    domain: Host = Field("", description="Put after name and suffix, with a dot, to get the address.")
    interface: Host | None = Field(
        None, description="Network interface whose IPv4 address is the node's address, instead of its name."
    )
    port_first: int = Field(20000, ge=1024, le=65000, description="First port for the rendezvous.")
    ports: PositiveInt = Field(10000, description="Job N meets at port_first + N modulo this.")

    @model_validator(mode="after")
    def _are_ports(self) -> Self:
        if self.port_first + self.ports > 65536:
            raise ValueError(
                f"port_first {self.port_first} + ports {self.ports} goes beyond the last port, 65535; lower one of them"
            )
        return self


BRACES = ("binds", "command", "flags", "image", "project")
"""What the words of a container can have in braces."""


class ContainerExec(Strict):
    """How a command runs inside the image."""

    command: str = Field("apptainer", description="apptainer or singularity, by name or path.")
    words: list[str] = Field(
        default=["{command}", "exec", "{flags}", "--bind", "{binds}", "{image}"],
        description="What stands before a command inside the image: {command}, {flags}, {image}; {binds}: the "
        "project's folder and `binds`, with commas; {project}: the project's folder alone.",
    )
    flags: list[str] = Field(default=[], description="Its flags: --nv (NVIDIA) or --rocm (AMD).")
    binds: list[str] = Field(default=[], description="Host folders to show inside, besides the project's own.")

    @field_validator("binds")
    @classmethod
    def _no_comma(cls, binds: list[str]) -> list[str]:
        for folder in binds:
            if "," in folder:
                raise ValueError(f"{folder} has a comma, at which apptainer cuts; bind a folder above it")
        return binds

    @field_validator("words")
    @classmethod
    def _known_braces(cls, words: list[str]) -> list[str]:
        for name in re.findall(r"\{(.*?)\}", " ".join(words)):
            if name not in BRACES:
                raise ValueError(f"there is no {name} to put into braces; known: {', '.join(BRACES)}")
        return words

    python: str = Field("python", description="Python inside the image.")


class Container(ContainerExec):
    """The image: built by the workflow, or the site's own."""

    enabled: bool = Field(
        False, description="Run what needs PyTorch inside the image (config key `container` overrides)."
    )
    image: str | None = Field(None, description="Path, or name, of an existing image (null: the workflow builds one).")
    image_is: Literal["file", "name"] = Field(
        "file", description="What `image` is: a file, or a name that the command knows, as podman-hpc and shifter take."
    )
    base: Literal["docker", "debootstrap", "rocm"] = Field(
        "docker",
        description="Start of the built image. docker: python:3.x-slim of Docker Hub; debootstrap: Debian 12; rocm: "
        "`rocm_image` with its own PyTorch, for AMD GPUs.",
    )
    rocm_image: str = Field(
        "rocm/pytorch:latest",
        description="Docker Hub image for base rocm, whose Python has PyTorch for ROCm: the release in envs/train.txt.",
    )
    mirror: str | None = Field(
        None, description="Debian mirror for base debootstrap (null: the one in this machine's apt settings)."
    )


class SiteRuntime(Strict):
    """What a running job needs to know of its site; part of run.json."""

    device: Literal["cpu", "cuda"] = Field("cpu", description="cpu: gloo between ranks; cuda: nccl, one GPU per rank.")
    nodes_max: PositiveInt | None = Field(None, description="Maximum nodes per run (null: no limit).")
    ranks_per_node_max: PositiveInt | None = Field(
        None, description="Maximum ranks per node, usually its GPUs (null: no limit)."
    )
    cpus_per_rank: PositiveInt = Field(1, description="CPU cores of each rank.")
    omp_threads: PositiveInt | None = Field(
        None, description="OMP threads of each rank (null: cpus_per_rank), where Slurm counts hardware threads."
    )
    before: list[str] = Field(
        default=[], description="Shell lines on each node before its ranks start, such as module load."
    )
    environment: dict[Variable, str] = Field(
        default={}, description="Environment variables of the ranks, as they stand."
    )
    environment_node: dict[Variable, str] = Field(
        default={}, description="The same, expanded by a shell on each node: $SLURM_NODEID, $(command)."
    )
    environment_clear: list[Variable] = Field(
        default=["PYTHONPATH"], description="Variables to remove before ranks start or the image is built."
    )
    hang_seconds: PositiveInt = Field(
        600, description="After how long a collective that does not end ends the run (seconds)."
    )
    stop_seconds: PositiveInt = Field(
        25,
        description="How long ranks that are asked to stop, or whose run failed, have before they are killed "
        "(seconds): less than Slurm's KillWait, which is 30 if nothing is said.",
    )
    warning: int = Field(
        120, ge=10, description="A training is told to save and stop when its Slurm job has so many seconds left."
    )
    srun: Srun | None = Field(None, description="Ranks start with srun, inside a Slurm job (null: on this machine).")
    container: ContainerExec | None = Field(
        None, description="How a command runs inside the image (null: without one)."
    )


class Figures(Strict):
    """What its hardware can do, for plans; null: not known, and what follows from it is not planned."""

    device_memory_gib: float | None = Field(
        None, gt=0, description="Memory of a device that processes can have (GiB), as preflight prints it."
    )
    unplanned_gib: float = Field(
        0.0,
        ge=0,
        description="Memory of a device that no plan counts (GiB): the context of CUDA, NCCL's buffers, gaps between "
        "tensors. A run fits into device_memory_gib less this.",
    )
    matrix_tflops: dict[Arithmetic, PositiveFloat] = Field(
        default={},
        description="TFLOP/s that a device reaches in matrix products, by arithmetic: float64, float32, bf16, fp16, "
        "float8.",
    )
    memory_gb_per_second: float | None = Field(None, gt=0, description="Bandwidth of a device's memory (GB/s).")
    node_gb_per_second: float | None = Field(
        None,
        gt=0,
        description="Bus bandwidth between the devices of a node (GB/s; the target collectives measures it).",
    )
    network_gb_per_second: float | None = Field(
        None, gt=0, description="The same between nodes, each device's share (GB/s)."
    )

    @model_validator(mode="after")
    def _leaves_memory(self) -> Self:
        if self.device_memory_gib is not None and self.unplanned_gib >= self.device_memory_gib:
            raise ValueError(
                f"unplanned_gib {self.unplanned_gib:g} leaves nothing of device_memory_gib {self.device_memory_gib:g}; "
                "lower it"
            )
        return self


class Site(SiteRuntime):
    """One file in config/sites."""

    slurm: Slurm | None = Field(None, description="How to ask Slurm for nodes (null: no Slurm here).")
    container: Container = Field(default=Container(), description="The image.")
    figures: Figures = Field(default=Figures(), description="What its hardware can do, for plans.")

    @model_validator(mode="after")
    def _leaves_time_to_train(self) -> Self:
        minutes = self.slurm and (self.slurm.of("train").runtime)
        if minutes and 60 * minutes < self.warning + 60:
            raise ValueError(
                f"a training has {minutes} minutes and is told to stop {self.warning} s before their end, so it may "
                "not fit one checkpoint; raise slurm.runtime or lower warning"
            )
        return self

    def place(self) -> SiteRuntime:
        """The part that belongs into run.json: what can change without another result is not in it."""
        values = {name: getattr(self, name) for name in SiteRuntime.model_fields}
        exec_ = {name: getattr(self.container, name) for name in ContainerExec.model_fields}
        return SiteRuntime(**values | {"container": ContainerExec(**exec_) if self.container.enabled else None})
