"""Plan runs: their memory, operations and traffic, from the engines' own steps on fake tensors; nothing is
trained. Writes a plan.json per run and, with --table, plan.md.
"""

import sys
from pathlib import Path
from typing import Annotated

from shardlab.cli import positive, program
from shardlab.data import store
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.records import plan
from shardlab.records.plan import Plan
from shardlab.report import plan_table
from shardlab.runs import slurm, slurm_request, stages
from shardlab.runs.slurm_request import Request
from shardlab.settings import load, resolve
from shardlab.settings.config import Config
from shardlab.settings.sites import Site
from shardlab.settings.types import Run

SCRIPT = "only {} itself knows what it will hold and send, so nothing can be planned."


@program
def main(
    config: Config,
    strategy: Annotated[str | None, "plan only this run (with --workload)"] = None,
    workload: Annotated[str | None, "its workload"] = None,
    data: Annotated[Path, "folder of the prepared data sets"] = Path("data/prepared"),
    results: Annotated[Path, "folder to write to"] = Path("results"),
    table: Annotated[Path | None, "also write a table of all plans"] = None,
    cores: Annotated[int, positive, "ranks to simulate at a time"] = 1,
) -> None:
    """Simulate, write the plans, print a summary."""
    if bool(strategy) != bool(workload):
        raise UserError("--strategy and --workload belong together; give both, or neither for all runs.")
    runs = [resolve.run(config, strategy, workload)] if strategy and workload else resolve.matrix(config)[0]
    site = load.site(config)
    plans, refused = made(runs, site, data, cores)
    results.mkdir(parents=True, exist_ok=True)
    for each in plans:
        each.write(results / each.strategy / each.workload / plan.FILE)
    text = plan_table.markdown(plans, refused, config)
    requests = [
        Request(run.strategy, slurm.resources(site, "train", *stages.scope("train", run).size(run)))
        for run in runs
        if site.slurm
    ]
    if sentence := slurm_request.sentence(requests, "Trainings", site.slurm):
        text += f"\n{sentence}\n"
    if table:
        write_text(table, text)
    print(text)
    if refused and strategy:
        raise UserError(next(iter(refused.values())))


def made(runs: list[Run], site: Site, data: Path, cores: int) -> tuple[list[Plan], dict[tuple[str, str], str]]:
    """Return the plans, and the reason for each (strategy, workload) without one.

    A run that does not fit is planned again with the least recomputation with which it fits.
    """
    from shardlab.plan.simulate import simulate  # imports torch, after the configuration was checked

    folders = {run.data.name: data / run.data.name for run in runs}
    there = {run.data.name: store.is_prepared(folders[run.data.name], run.data) for run in runs}
    plans: dict[int, Plan] = {}
    refused: dict[tuple[str, str], str] = {}
    refused |= {(run.strategy, run.workload): SCRIPT.format(run.script) for run in runs if run.script}
    left = {number: run for number, run in enumerate(runs) if not run.script}
    for mode in plan.MODES:
        requested = {
            number: run if run.recipe.activation_checkpointing == mode else _recomputing(run, mode)
            for number, run in left.items()
            if run.recipe.activation_checkpointing in plan.MODES[: plan.MODES.index(mode) + 1]
        }
        costs = {number: plan.cost(run) for number, run in requested.items()}
        distinct = {costs[number]: run for number, run in requested.items()}
        with_data = [(run, folders[run.data.name] if there[run.data.name] else None) for run in distinct.values()]
        simulated = dict(zip(distinct, simulate(with_data, cores), strict=True))
        for number, cost in costs.items():
            run, estimate = runs[number], simulated[cost]
            if isinstance(estimate, str):
                if number not in plans:  # else only a recomputation is refused
                    refused[run.strategy, run.workload] = estimate
                del left[number]
                continue
            fits = plan.fits(estimate, site.hardware)
            made = plan.make(run, estimate, mode, fits=fits, prepared=there[run.data.name])
            plans[number] = made
            if fits is not False:
                del left[number]
            print(f"{run.strategy} x {run.workload}", file=sys.stderr, flush=True)
    return [plans[number] for number in sorted(plans)], refused


def _recomputing(run: Run, mode: str) -> Run:
    return run.model_copy(update={"recipe": run.recipe.model_copy(update={"activation_checkpointing": mode})})
