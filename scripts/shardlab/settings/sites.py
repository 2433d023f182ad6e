"""Sites: settings of a machine or cluster, how to request nodes there, and how ranks start. Data, no code per site."""

import re
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from shardlab.schema import Strict

Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable: letters, digits and _, not beginning with a digit."""
Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]*$")]
"""Part of a host name, or the name of a network interface."""


Stage = Literal["init", "plan", "train", "noise_floor", "evaluate", "preflight"]
"""Stages that run in separate jobs."""


class Billing(Strict):
    """What a site charges for a job: ``factor`` x its GPUs, nodes or cores x its hours, in a unit of the site's."""

    per: Literal["gpu", "node", "core"] = Field(
        "gpu", description="What is counted of a job: the GPUs, nodes or cores that Slurm allocates."
    )
    factor: PositiveFloat = Field(1.0, description="Units charged for an hour of one of them.")
    unit: str | None = Field(
        None, description="Name of the unit, such as node-hours, GPU-hours or SBU (null: that of what is counted)."
    )

    @property
    def name(self) -> str:
        """Name of the unit."""
        return self.unit or {"gpu": "GPU-hours", "node": "node-hours", "core": "core-hours"}[self.per]

    def charge(self, hours: float, *, gpus: float, nodes: int, cores: int) -> float:
        """Return what the site charges for a job with all of these, in its unit."""
        return hours * self.factor * {"gpu": gpus, "node": nodes, "core": cores}[self.per]


class Queue(Strict):
    """A way to submit jobs, such as a partition or a QOS, and the jobs that it takes. Unset keys are `slurm`'s own."""

    partition: str | None = Field(None, description="Partition, or several with commas, of which Slurm takes one.")
    qos: str | None = Field(None, description="Quality of service.")
    constraint: str | None = Field(None, description="Required node features.")
    flags: list[str] = Field(default=[], description="sbatch flags in addition to those of `slurm`.")
    billing: Billing | None = Field(None, description="What the site charges for a job of this queue.")
    nodes_max: PositiveInt | None = Field(None, description="Maximum nodes of a job (null: no limit).")
    gpus_per_node_max: PositiveInt | None = Field(None, description="Maximum GPUs of a job on a node (null: no limit).")
    gpus_max: PositiveInt | None = Field(None, description="Maximum GPUs of a job (null: no limit).")
    runtime_max: PositiveInt | None = Field(
        None,
        description="Longest time limit (minutes); a job that wants more requests this (null: no limit). `pack` "
        "requests its --minutes all the same; choose its queue with slurm.queue.",
    )

    def takes(self, nodes: int, gpus_per_node: int) -> bool:
        """Return whether a job of this size is within the limits."""
        wanted = {"nodes_max": nodes, "gpus_per_node_max": gpus_per_node, "gpus_max": nodes * gpus_per_node}
        return all(number <= self.limits.get(key, number) for key, number in wanted.items())

    @property
    def limits(self) -> dict[str, int]:
        """The limits of a job's size that are set."""
        return {key: most for key in ("nodes_max", "gpus_per_node_max", "gpus_max") if (most := getattr(self, key))}


class SlurmStage(Strict):
    """Overrides of the Slurm settings for one stage; null: the site's value."""

    queue: list[str] | None = Field(None, min_length=1, description="Queues to try in this order.")
    runtime: PositiveInt | None = Field(None, description="Time limit (minutes).")


class Slurm(Strict):
    """Slurm request. Unset keys are left to the cluster."""

    partition: str | None = Field(None, description="Partition (null: the cluster's default).")
    account: str | None = Field(None, description="Account to charge (null: your default account).")
    qos: str | None = Field(None, description="Quality of service (null: the default of partition and account).")
    constraint: str | None = Field(None, description="Required node features (null: any node).")
    gpus: Literal["gres", "gpus-per-node"] | None = Field(
        None, description="How GPUs are requested, one per rank: gres (--gres) or gpus-per-node (null: no GPUs)."
    )
    gpu_type: str | None = Field(
        None, pattern=r"^[\w.-]+$", description="Type in the GPU request, as in gpu:h200:4 (null: any type)."
    )
    memory_mb_per_rank: PositiveInt = Field(2000, description="Memory per rank on a node (MiB), requested as --mem.")
    runtime: PositiveInt = Field(60, description="Time limit of a training job (minutes).")
    requeue: bool = Field(
        True,
        description="Requeue a job under its id if it was asked to, was preempted or lost its node (false: "
        "if the site forbids it; Snakemake then submits it again).",
    )
    flags: list[str] = Field(default=[], description="Additional sbatch flags, such as --exclusive.")
    billing: Billing = Field(default=Billing(), description="What the site charges for a job.")
    queues: dict[str, Queue] = Field(
        default={}, description="Queues by name, where jobs of different sizes or stages go different ways."
    )
    queue: list[str] | None = Field(
        None,
        min_length=1,
        description="Queues to try in this order; the first that takes a job's size gets it (null: all).",
    )
    stages: dict[Stage, SlurmStage] = Field(
        default={}, description=f"Overrides for the jobs of a stage: {', '.join(get_args(Stage))}."
    )

    @model_validator(mode="after")
    def _known_queues(self) -> Self:
        chosen = {"queue": self.queue} | {f"stages.{name}.queue": stage.queue for name, stage in self.stages.items()}
        for key, names in chosen.items():
            for name in names or []:
                if name not in self.queues:
                    known = ", ".join(self.queues) or "none; define it there"
                    raise ValueError(f"{key}: {name} is not one of queues (known: {known})")
        return self

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if len(self._units) > 1:
            here = " and ".join(sorted(self._units))
            raise ValueError(f"billing: a site has one unit, and here are {here}; set `unit`")
        return self

    @property
    def _units(self) -> set[str]:
        return {(queue.billing or self.billing).name for queue in [*self.queues.values()] or [Queue()]}

    @property
    def unit(self) -> str:
        """Name of the unit that the site charges in."""
        return next(iter(self._units))

    def queue_names(self, stage: Stage) -> list[str]:
        """Return the names of the queues that a stage's jobs may go to, in the order in which they are tried."""
        return self.stages.get(stage, SlurmStage()).queue or self.queue or list(self.queues)

    def queues_of(self, stage: Stage) -> list[Queue]:
        """Return these queues; one without limits where the site names none."""
        return [self.queues[name] for name in self.queue_names(stage)] or [Queue()]

    def queue_for(self, stage: Stage, nodes: int, gpus_per_node: int) -> Queue | None:
        """Return the queue that takes a stage's job of this size, with the unset keys filled in; None if none does."""
        taking = (queue for queue in self.queues_of(stage) if queue.takes(nodes, gpus_per_node))
        return next(map(self.filled, taking), None)

    def filled(self, queue: Queue) -> Queue:
        """Return a queue with the unset keys filled in."""
        own = {key: getattr(queue, key) or getattr(self, key) for key in ("partition", "qos", "constraint")}
        return queue.model_copy(update=own | {"flags": [*self.flags, *queue.flags]})

    def billing_of(self, partition: str | None, qos: str | None) -> Billing:
        """Return what the site charges for a job there."""
        for queue in map(self.filled, self.queues.values()):
            is_there = queue.partition is None or partition in (queue.partition, *queue.partition.split(","))
            if is_there and queue.qos in (None, qos):
                return queue.billing or self.billing
        return self.billing

    def minutes(self, stage: Stage, queue: Queue, wanted: int | None = None) -> int:
        """Return the time limit of a stage's job: the stage's, ``wanted`` or a training's, as far as the queue goes."""
        limit = self.stages.get(stage, SlurmStage()).runtime or wanted or self.runtime
        return min(limit, queue.runtime_max or limit)


class Srun(Strict):
    """Start of a job's ranks by srun, and the address where the job's nodes meet."""

    flags: list[str] = Field(default=[], description="Additional flags of srun, such as --cpu-bind=none.")
    suffix: Host = Field(
        "", description="Appended to a node's short host name to form its address (JURECA: i; or .DOMAIN)."
    )
    interface: Host | None = Field(
        None, description="Network interface whose IPv4 address is the node's address, instead of its name."
    )
    port_first: int = Field(
        20000, ge=1024, le=55536, description="First of 10,000 ports for the rendezvous: job N uses N modulo these."
    )


OF_IMAGE = ("binds", "image", "mount", "mounts", "project")
"""Placeholders of words that name an image and what is mounted in it."""
BRACES = ("command", "flags", *OF_IMAGE)
"""Placeholders of a container's command words."""


class ContainerExec(Strict):
    """Command that runs inside the image."""

    command: str = Field("apptainer", description="Program that starts images, by name or path.")
    exec_template: list[str] = Field(
        default=["{command}", "exec", "{flags}", "--bind", "{binds}", "{image}"],
        description="Words that precede a command inside the image: {command}, {flags}, {image}; {binds}: the "
        "project's folder and `binds`, comma-separated; {mounts}: the same as SOURCE:TARGET pairs; a word with {mount} "
        "is repeated for each pair; {project}: only the project's folder.",
    )
    srun_options: list[str] = Field(
        default=[],
        description="Options that make srun itself start a step inside the image, where a plugin of Slurm does that "
        "(Pyxis: --container-image={image}), with the same placeholders; never options of sbatch. Instead of "
        "`command`, `exec_template` and `flags`.",
    )
    flags: list[str] = Field(default=[], description="Flags of the command: --nv (NVIDIA) or --rocm (AMD).")
    binds: list[str] = Field(default=[], description="Host folders to mount inside, in addition to the project's.")

    @field_validator("exec_template", "srun_options")
    @classmethod
    def _known_braces(cls, words: list[str], field: ValidationInfo) -> list[str]:
        known = BRACES if field.field_name == "exec_template" else OF_IMAGE
        for name in re.findall(r"\{(.*?)\}", " ".join(words)):
            if name not in known:
                raise ValueError(f"unknown placeholder {name}; known: {', '.join(known)}")
        return words

    python: str = Field("python", description="Python inside the image.")


class Container(ContainerExec):
    """The image: built by the workflow, or provided by the site."""

    enabled: bool = Field(
        False, description="Run everything that needs PyTorch inside the image (config key `container` overrides)."
    )
    image: str | None = Field(None, description="Path or name of an existing image (null: the workflow builds one).")
    image_is: Literal["file", "name"] = Field(
        "file", description="Kind of `image`: a file, or a name known to the command, as for podman-hpc and shifter."
    )
    base: Literal["docker", "debootstrap", "rocm"] = Field(
        "docker",
        description="Base of the built image. docker: python:3.x-slim of Docker Hub; debootstrap: Debian 12; rocm: "
        "`rocm_image` with the PyTorch inside it, for AMD GPUs.",
    )
    rocm_image: str = Field(
        "rocm/pytorch:latest",
        description="Docker Hub image for base rocm, with PyTorch for ROCm, of 2.11 to the release in envs/train.txt.",
    )
    mirror: str | None = Field(
        None, description="Debian mirror for base debootstrap (null: as in this machine's apt settings)."
    )

    build_flags: list[str] | None = Field(
        None,
        description="Flags of the image's build (null: --fakeroot, except for root; []: none, where the site forbids "
        "fakeroot).",
    )

    @model_validator(mode="after")
    def _srun_gets_an_image(self) -> Self:
        if self.srun_options and self.image is None:
            raise ValueError("srun_options need an image, and the workflow builds one for apptainer only; set image")
        return self


class SiteRuntime(Strict):
    """Settings of the site that a running job needs; part of run.json."""

    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="cpu: gloo between ranks; cuda, also AMD's: nccl, one GPU per rank."
    )
    nodes_max: PositiveInt | None = Field(None, description="Maximum nodes per run (null: no limit).")
    ranks_per_node_max: PositiveInt | None = Field(
        None, description="Maximum ranks per node, usually its GPUs (null: no limit)."
    )
    cpus_per_rank: PositiveInt = Field(1, description="CPU cores per rank.")
    omp_threads: PositiveInt | None = Field(
        None, description="OpenMP threads per rank (null: cpus_per_rank), for Slurm that counts hardware threads."
    )
    setup_commands: list[str] = Field(
        default=[], description="Shell lines to run on each node before its ranks start, such as module load."
    )
    environment: dict[Variable, str] = Field(
        default={}, description="Environment variables of the ranks, taken literally."
    )
    environment_node: dict[Variable, str] = Field(
        default={}, description="Environment variables that a shell expands on each node: $SLURM_NODEID, $(command)."
    )
    environment_clear: list[Variable] = Field(
        default=["PYTHONPATH"], description="Variables to remove before ranks start or the image is built."
    )
    hang_seconds: PositiveInt = Field(600, description="Timeout for collectives, after which the run ends (seconds).")
    stop_seconds: PositiveInt = Field(
        25,
        description="Time to exit for ranks that are asked to stop, or whose run failed, before they are killed "
        "(seconds): less than Slurm's KillWait, whose default is 30.",
    )
    warning: int = Field(
        120, ge=10, description="Checkpoint and exit this many seconds before the time limit of the Slurm job."
    )
    srun: Srun | None = Field(None, description="Start ranks with srun, inside a Slurm job (null: on this machine).")
    container: ContainerExec | None = Field(None, description="Command that runs inside the image (null: no image).")

    @model_validator(mode="after")
    def _srun_takes_options(self) -> Self:
        if self.container and self.container.srun_options and self.srun is None:
            raise ValueError(
                "container.srun_options are of srun, which does not start the ranks of this site; add `srun: {}`, or "
                "use container.exec_template"
            )
        return self


class Hardware(Strict):
    """Hardware figures of the site, for plans; null: unknown, and what depends on it is not planned."""

    device_memory_gib: float | None = Field(
        None, gt=0, description="Device memory available to processes (GiB), as preflight prints it."
    )
    unplanned_gib: float = Field(
        2.0,
        ge=0,
        description="Device memory that plans do not count (GiB): the CUDA context, NCCL's buffers, fragmentation; an "
        "allowance, not measured. A run fits if it needs at most device_memory_gib minus this.",
    )


class Site(SiteRuntime):
    """A site: one file in config/sites."""

    slurm: Slurm | None = Field(None, description="Slurm request (null: no Slurm).")
    container: Container = Field(default=Container(), description="Container image.")
    hardware: Hardware = Field(default=Hardware(), description="Hardware figures, for plans.")

    @model_validator(mode="after")
    def _leaves_time_to_train(self) -> Self:
        if self.slurm is None:
            return self
        minutes = min(self.slurm.minutes("train", queue) for queue in self.slurm.queues_of("train"))
        if 60 * minutes < self.warning + 60:
            raise ValueError(
                f"a training has {minutes} minutes and is asked to stop {self.warning} s before the end, so it may "
                "not fit one checkpoint; raise slurm.runtime (and runtime_max of its queue), or lower warning"
            )
        return self

    def place(self) -> SiteRuntime:
        """Return the part that belongs into run.json, without what does not affect the result."""
        values = {name: getattr(self, name) for name in SiteRuntime.model_fields}
        exec_ = {name: getattr(self.container, name) for name in ContainerExec.model_fields}
        return SiteRuntime(**values | {"container": ContainerExec(**exec_) if self.container.enabled else None})
