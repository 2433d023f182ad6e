"""Order of the report's workloads: llama2 and moe first, then those with the most runs, a toy model last."""

from shardlab.report.run_data import RunData

FIRST = ("llama2", "moe")
"""The workloads that the documents speak of: most strategies can train them."""


def order_workloads(workloads: list[str], run_data: RunData) -> list[str]:
    """The workloads: FIRST, then by the number of their runs, then by parameters."""
    runs = run_data.table.workload.value_counts()
    parameters = dict.fromkeys(workloads, 0)
    for run in run_data.runs:
        parameters[run.train.workload] = run.train.parameters
    rank = {name: place - len(FIRST) for place, name in enumerate(FIRST)}
    return sorted(workloads, key=lambda name: (rank.get(name, 0), -runs.get(name, 0), -parameters[name]))
