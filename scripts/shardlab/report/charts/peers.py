"""Time per step compared with other trainers."""

import altair as alt
import pandas as pd

from shardlab.report.charts.helpers import WIDTH
from shardlab.report.run_data import RunData

TITLE = "Time per step, compared with other trainers"
CAPTION = (
    "Time per step relative to a bare PyTorch loop in the same round, by model size: the median, with error bars of "
    "two standard errors. With several ranks the reference is the same strategy written by hand."
)


def table(run_data: RunData) -> pd.DataFrame:
    """Columns as benchmarks/peers.py writes them: strategy, size, trainer, step ms, to bare, standard error, ..."""
    return run_data.study("benchmarks/**/peers.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A point per trainer, a row per strategy and size."""
    shown = table[table.trainer != "bare"]
    shown = shown.assign(
        label=shown.strategy + ", " + shown["size"],
        low=shown["to bare"] - 2 * shown["standard error"],
        high=shown["to bare"] + 2 * shown["standard error"],
    )
    y = alt.Y("label:N", title=None, sort=list(dict.fromkeys(shown.label)))
    color = alt.Color("trainer:N", title=None, sort=list(dict.fromkeys(shown.trainer)))
    offset = alt.YOffset("trainer:N")
    base = alt.Chart(shown, width=WIDTH).encode(y, color, offset, tooltip=[*shown.columns])
    points = base.mark_point(filled=True, size=70).encode(alt.X("to bare:Q", scale=alt.Scale(zero=False)))
    bars = base.mark_rule().encode(alt.X("low:Q", title="time per step, relative to the bare loop"), alt.X2("high:Q"))
    one = alt.Chart().mark_rule(color="grey", strokeDash=[4, 3]).encode(alt.X(datum=1))
    return alt.layer(one, bars, points, data=shown)
