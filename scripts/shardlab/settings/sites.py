"""Sites: where runs take place, how to ask for nodes there, and how ranks start and meet. Data, no code per site."""

import re
from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from shardlab.schema import Strict


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
    flags: list[str] = Field(default=[], description="More flags of sbatch, such as --exclusive.")


class Srun(Strict):
    """How the ranks of a job start, and how its nodes find the first one."""

    flags: list[str] = Field(default=[], description="More flags of srun, such as --cpu-bind=none.")
    suffix: str = Field("", description="Put after a node's short host name to get its address (JURECA: i).")
    domain: str = Field("", description="Put after name and suffix, with a dot, to get the address.")
    interface: str | None = Field(
        None, description="Network interface whose IPv4 address is the node's address, instead of its name."
    )
    port_first: int = Field(20000, ge=1024, le=65000, description="First port for the rendezvous.")
    ports: PositiveInt = Field(10000, description="Job N meets at port_first + N modulo this.")


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
    image: str | None = Field(None, description="Path of an existing image (null: the workflow builds one).")
    base: Literal["docker", "debootstrap"] = Field(
        "docker", description="What the built image starts from: python:3.x-slim of Docker Hub, or Debian 12."
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
    cpus_per_rank: PositiveInt = Field(1, description="CPU cores, and OMP threads, of each rank.")
    environment: dict[str, str] = Field(default={}, description="Environment variables of the ranks, as they stand.")
    environment_node: dict[str, str] = Field(
        default={}, description="The same, expanded by a shell on each node: $SLURM_NODEID, $(command)."
    )
    environment_clear: list[str] = Field(
        default=["PYTHONPATH"], description="Variables to remove before ranks start or the image is built."
    )
    srun: Srun | None = Field(None, description="Ranks start with srun, inside a Slurm job (null: on this machine).")
    container: ContainerExec | None = Field(
        None, description="How a command runs inside the image (null: without one)."
    )


class Site(SiteRuntime):
    """One file in config/sites."""

    slurm: Slurm | None = Field(None, description="How to ask Slurm for nodes (null: no Slurm here).")
    container: Container = Field(default=Container(), description="The image.")

    def place(self) -> SiteRuntime:
        """The part that belongs into run.json: what can change without another result is not in it."""
        values = {name: getattr(self, name) for name in SiteRuntime.model_fields}
        exec_ = {name: getattr(self.container, name) for name in ContainerExec.model_fields}
        return SiteRuntime(**values | {"container": ContainerExec(**exec_) if self.container.enabled else None})
