"""Patch of Snakemake's choice of jobs: one that follows another job's output as ``ancient`` is checked itself, and does
not run again because it has such an input, or no longer has it (the image, with config key ``container``).

Snakemake checks a job's parameters, inputs and code only if no job before it runs, as it then runs anyway. It skips the
check also where the job before is followed by ``ancient`` inputs alone, because of which nothing runs, unless they are
missing. Without the patch, an edit that changes both jobs runs the first alone, and those after both with the old file
of the second; and an image that is made again trains all runs again.
"""

from collections.abc import Mapping
from functools import wraps
from typing import Any


class _Following(dict[Any, dict[Any, Any]]):
    """Job: the jobs that run because it does, with its files that they read."""

    def __init__(self, depending: Mapping[Any, Mapping[Any, Any]]) -> None:
        super().__init__()
        self.depending = depending

    def __missing__(self, job: Any) -> dict[Any, Any]:
        followers = self.depending[job].items()
        self[job] = found = {one: files for one, files in followers if not all(file.is_ancient for file in files)}
        return found


def ancient_inputs_decide_nothing() -> None:
    from snakemake.dag import DAG
    from snakemake.persistence import PersistenceBase

    update, listed = DAG.update_needrun, PersistenceBase._input
    if hasattr(update, "__wrapped__"):
        return

    @wraps(update)
    async def update_needrun(self: Any, *arguments: Any, **options: Any) -> None:
        depending, self.depending = self.depending, _Following(self.depending)
        try:
            await update(self, *arguments, **options)
        finally:
            self.depending = depending

    def _input(self: Any, job: Any) -> list[str]:
        return [file for file in listed(self, job) if not getattr(file, "is_ancient", False)]

    DAG.update_needrun, PersistenceBase._input = update_needrun, _input
