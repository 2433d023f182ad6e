"""What the jobs of each stage request from Slurm, and start there: the sbatch line, the lines of the job's script."""

import re
import shlex

from shardlab.errors import UserError
from shardlab.files import COMMAND
from shardlab.runs import commands, launchers, slurm, stages
from shardlab.runs.slurm_request import sbatch
from shardlab.runs.stages import Scope
from shardlab.settings import resolve
from shardlab.settings.config import Config
from shardlab.settings.sites import Site, Stage
from shardlab.settings.types import Ranks

STARTED: dict[Stage, tuple[Scope, ...]] = {
    "preflight": (Scope.NODES, Scope.RANKS),
    "init": (Scope.ONE,),
    "plan": (Scope.ONE,),
    "train": (Scope.RANKS,),
    "noise_floor": (Scope.ONE,),
    "evaluate": (Scope.ONE,),
}
"""What a job of each stage starts: one process, one per node, the ranks."""
IMAGE = "containers/train.sif"
"""The image that the workflow builds, where the site's file names none."""
NAMES = ("NAME", "LOG")
"""Placeholders of what differs between jobs."""


LIKE = (
    "prove requests what init does; compare, diagnose and export what evaluate does; capture what train does, for "
    f"{stages.MINUTES['capture']} minutes; Snakemake's plugin wants two tasks, also for one rank"
)


def heading(nodes: int, per_node: int) -> str:
    return f"{nodes} x {per_node} (nodes x ranks per node)"


def sizes(config: Config, site: Site) -> list[tuple[int, int]]:
    """Return the sizes to show, nodes x ranks per node: one device, the call's, one and two whole nodes."""
    whole = site.ranks_per_node_max or config.ranks_per_node
    found = [(1, 1), (config.nodes, config.ranks_per_node), (1, whole), (2, whole)]
    return [size for size in dict.fromkeys(found) if site.nodes_max is None or size[0] <= site.nodes_max]


def text(config: Config, site: Site, of_sizes: list[tuple[int, int]]) -> str:
    """Return what jobs of these sizes request and start; stages that share a line share it here, too.

    Where no queue takes a size, the refusal stands in its place.
    """
    common = shlex.join(sbatch({"mpi": "srun", "tasks_per_node": 2}, *NAMES)).partition(" --ntasks")[0]
    every = common.replace("--comment shardlab", "--comment rule_RULE_wildcards_STRATEGY_WORKLOAD")
    first = [f"# every job: {every} -D PROJECT", f"# {LIKE}"] if site.slurm else []
    parts = ["\n".join([*first, started(resolve.ranks(config), site, Scope.ONE)[0]])]
    for nodes, per_node in of_sizes:
        found = _of_size(config.model_copy(update={"nodes": nodes, "ranks_per_node": per_node}), site, common)
        parts.append(f"## {heading(nodes, per_node)}\n{found}\n")
    return "\n".join(parts)


def _of_size(config: Config, site: Site, common: str) -> str:
    size, shared = (config.nodes, config.ranks_per_node), dict[str, list[str]]()
    shown = [stage for stage in STARTED if STARTED[stage] != (Scope.ONE,) or size == (1, 1)]
    try:
        run = resolve.ranks(config)
        for stage in shown if site.slurm else []:
            words = sbatch(slurm.resources(site, stage, *size, stages.MINUTES.get(stage)), *NAMES)
            shared.setdefault(shlex.join(words).replace(common, "sbatch ..."), []).append(stage)
    except UserError as error:
        return f"error: {error}"
    for stage in shown:
        for scope in STARTED[stage]:
            each = stage if len(STARTED[stage]) == 1 else f"{stage} of the {scope.name.lower()}"
            shared.setdefault(started(run, site, scope)[1], []).append(each)
    return "\n".join(f"# {', '.join(them)}\n{line}" for line, them in shared.items())


def started(run: Ranks, site: Site, scope: Scope) -> tuple[str, str]:
    """Return the variables that a job exports, and the rest of its script."""
    image = (site.container.image or IMAGE) if site.container.enabled else None
    script = commands.lines(run, [str(COMMAND), "STAGE", "--settings=run.json"], image, scope)
    first = re.search(f"^(exec|export {launchers.RENDEZVOUS}=)", script, re.MULTILINE)
    assert first is not None
    return script[: first.start()], script[first.start() :]
