"""Order of the report's workloads: those that the most strategies can train come first, a toy model last."""

from collections.abc import Collection

from shardlab.errors import UserError
from shardlab.report.run_data import RunData
from shardlab.settings import load, resolve
from shardlab.settings.config import Config


def order_workloads(
    workloads: list[str], config: Config, run_data: RunData, left_out: Collection[tuple[str, str]]
) -> list[str]:
    """The workloads by the number of the project's strategies that can train them, then by parameters.

    The call has resolved its own runs, and those ``left_out``; only those of other strategies are resolved here.
    """
    strategies = load.config({"strategies": ["all"]}).strategies
    planned = set(zip(run_data.table.strategy, run_data.table.workload, strict=True))

    def trainable(workload: str) -> int:
        names = [(strategy, workload) for strategy in strategies]
        return sum(name in planned or (name not in left_out and _is_possible(config, *name)) for name in names)

    parameters = dict.fromkeys(workloads, 0)
    for run in run_data.runs:
        parameters[run.train.workload] = run.train.parameters
    return sorted(workloads, key=lambda name: (-trainable(name), -parameters[name]))


def _is_possible(config: Config, strategy: str, workload: str) -> bool:
    """Return whether a strategy can train a workload."""
    try:
        resolve.run(config, strategy, workload)
    except UserError:
        return False
    return True
