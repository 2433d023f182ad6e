"""Step time of a pipeline by the number of micro-batches, and its bubble."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import WIDTH
from shardlab.report.run_data import RunData

TITLE = "Number of micro-batches"
CAPTION = (
    "Median time per step, and the idle fraction of the forward and backward passes, over the number of micro-batches "
    "that each batch is split into. With stages that take equally long, it is (p - 1) / (m + p - 1)."
)


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as microbatch_sweep.py writes them: a row per number of micro-batches."""
    return run_data.study(f"microbatch_sweep/{'_'.join(run_data.table.workload.unique())}.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Two panels over the number of micro-batches."""
    x = alt.X("n_microbatches:O", title="micro-batches", axis=alt.Axis(labelAngle=0))
    step = alt.Chart(table, width=WIDTH, height=120).mark_line(point=True)
    step = step.encode(x, alt.Y("step_seconds_median:Q", title="time per step (s)"))
    kinds = {"idle": "measured", "idle_planned": "(p - 1) / (m + p - 1)"}
    parts = [
        pd.DataFrame({"n_microbatches": table.n_microbatches, "waiting": table[column], "kind": label})
        for column, label in kinds.items()
        if table[column].notna().all()
    ]
    idle = alt.Chart(pd.concat(parts), width=WIDTH, height=120).mark_line(point=True)
    legend = alt.Legend(title=None, orient="bottom")
    idle = idle.encode(
        x,
        alt.Y("waiting:Q", axis=alt.Axis(format=".0%"), scale=alt.Scale(domainMin=0)),
        alt.Color("kind:N", legend=legend, sort=[*kinds.values()]),
    )
    first = table.iloc[0]
    title = f"{first['workload']} under {first['strategy']} ({first['schedule']}) on {first['ranks']} ranks"
    return alt.vconcat(step, idle, title=title)
