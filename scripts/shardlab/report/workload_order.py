"""Order of the report's workloads: those that the most strategies can train come first, a toy model last."""

from shardlab.errors import UserError
from shardlab.report.run_data import RunData
from shardlab.settings import load, resolve
from shardlab.settings.config import Config


def order_workloads(workloads: list[str], config: Config, run_data: RunData) -> list[str]:
    """The workloads by the number of the project's strategies that can train them, then by parameters."""
    strategies = load.config({"strategies": ["all"]}).strategies
    parameters = dict.fromkeys(workloads, 0)
    for run in run_data.runs:
        parameters[run.train.workload] = run.train.parameters
    return sorted(workloads, key=lambda name: (-_trainable(name, strategies, config), -parameters[name]))


def _trainable(workload: str, strategies: list[str], config: Config) -> int:
    """How many of these strategies can train a workload, whether or not the call names them."""
    count = 0
    for strategy in strategies:
        try:
            resolve.run(config, strategy, workload)
        except UserError:
            continue
        count += 1
    return count
