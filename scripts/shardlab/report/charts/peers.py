"""A step of our trainer beside those of others."""

import altair as alt
import pandas as pd

from shardlab.report.charts.marks import WIDTH
from shardlab.report.evidence import Evidence

TITLE = "A step, beside other trainers"
CAPTION = (
    "Each trainer's step as a multiple of a bare PyTorch loop's step of the same round (median, with twice its "
    "standard error to both sides), by size of the model; with several ranks beside the same strategy by hand."
)


def table(evidence: Evidence) -> pd.DataFrame:
    """As benchmarks/peers.py writes it: strategy, size, trainer, step ms, to bare, standard error, ..."""
    return evidence.study("benchmarks/**/peers.csv")


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A point for each trainer, a row for each strategy and size."""
    shown = table[table.trainer != "bare"]
    shown = shown.assign(
        of=shown.strategy + ", " + shown["size"],
        low=shown["to bare"] - 2 * shown["standard error"],
        high=shown["to bare"] + 2 * shown["standard error"],
    )
    y = alt.Y("of:N", title=None, sort=list(dict.fromkeys(shown.of)))
    color = alt.Color("trainer:N", title=None, sort=list(dict.fromkeys(shown.trainer)))
    offset = alt.YOffset("trainer:N")
    base = alt.Chart(shown, width=WIDTH).encode(y, color, offset, tooltip=[*shown.columns])
    points = base.mark_point(filled=True, size=70).encode(alt.X("to bare:Q", scale=alt.Scale(zero=False)))
    bars = base.mark_rule().encode(alt.X("low:Q", title="step, to the bare loop's"), alt.X2("high:Q"))
    one = alt.Chart().mark_rule(color="grey", strokeDash=[4, 3]).encode(alt.X(datum=1))
    return alt.layer(one, bars, points, data=shown)
