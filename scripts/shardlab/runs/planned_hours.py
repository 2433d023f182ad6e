"""Hours of devices that trainings are planned to use, and those that they request."""

from collections.abc import Iterable
from pathlib import Path

from shardlab.data import order, store
from shardlab.errors import UserError
from shardlab.records.plan import Plan
from shardlab.runs.slurm_request import Request
from shardlab.settings.sites import Slurm
from shardlab.settings.types import Run

PREPARED = Path("data/prepared")


def steps(run: Run, prepared: Path = PREPARED) -> int | None:
    """Return the number of steps of a training; None if its data are not prepared yet."""
    try:
        samples = store.samples_in(prepared / run.data.name, "train")
    except UserError:
        return None
    return run.recipe.steps(order.BatchOrder(samples, run.recipe.global_batch_size, run.seed).steps_per_epoch)


def hours(run: Run, plan: Plan | None, prepared: Path = PREPARED) -> float | None:
    """Return the hours of devices that a training is planned to take; None if that is unknown."""
    count = steps(run, prepared)
    if plan is None or plan.step_seconds is None or count is None:
        return None
    return run.nodes * run.devices_per_node * count * plan.step_seconds / 3600


def sentence(
    requests: Iterable[Request], planned: Iterable[float | None], what: str, site: Slurm | None, tries: int = 1
) -> str:
    """Return what jobs request, and what trainings are planned to use, in one sentence.

    ``tries``: how often Snakemake submits a job that fails.
    """
    listed, known = list(requests), list(planned)
    there = [each for each in known if each is not None]
    parts = []
    if listed and site:
        gpus = sum(request.minutes * request.gpus for request in listed) / 60
        charged = sum(request.charge(site) for request in listed)
        amount = f"{charged:,.1f} {site.unit}"
        if gpus and (gpus, "GPU-hours") != (charged, site.unit):
            amount = f"{gpus:,.1f} GPU-hours, charged as {amount}"
        again = f"; {tries * charged:,.1f} {site.unit} if every job is tried {tries} times" * (tries > 1)
        limits = f"the time limits of {_counted(len(listed), 'job')}"
        parts.append(f"{what} request at most {amount}: {limits}{again}")
    if there:
        unplanned = len(known) - len(there)
        but = f", without {_counted(unplanned, 'training')} of unknown length" if unplanned else ""
        parts.append(f"planned for {_counted(len(there), 'training')}: {sum(there):,.3g} device-hours{but}")
    elif listed and known:
        parts.append("how long trainings take needs plans, data and the devices' speeds (docs/plans.md)")
    return "; ".join(parts) + "." if parts else ""


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
