"""Load of the experts and dropped tokens of each strategy."""

import altair as alt
import numpy as np
import pandas as pd

from shardlab.report.charts.helpers import ROW, strategies
from shardlab.report.run_data import RunData

LAYERS, WIDTH = 4, 560
"""Maximum number of layers that are shown, evenly spaced; width of all of them together, in pixels."""
TITLE = "Load per expert"
CAPTION = (
    "Tokens of each expert over the whole training, relative to the mean of its layer (1: balanced): a row per "
    "strategy, a panel per layer (four of them if there are more). Equal strategies have equal rows. On the right, "
    "dropped tokens: choices of experts, over all layers and steps, that no expert computed."
)


def table(run_data: RunData) -> pd.DataFrame:
    """strategy, layer, expert, tokens, load (relative to the mean), dropped (the same in all rows of a strategy)."""
    rows = []
    for run in run_data.runs:
        steps = run.steps.dropna(subset=["expert_load"])
        if steps.empty:
            continue
        tokens = np.array(steps.expert_load.tolist()).sum(0)
        dropped = int(steps.dropped_tokens.sum())
        for layer in sorted({*np.linspace(0, len(tokens) - 1, LAYERS).round().astype(int).tolist()}):
            mean = tokens[layer].mean()
            for expert, count in enumerate(tokens[layer].tolist()):
                rows.append((run.train.strategy, f"layer {layer}", expert, count, count / mean, dropped))
    return pd.DataFrame(rows, columns=["strategy", "layer", "expert", "tokens", "load", "dropped"])


def draw(table: pd.DataFrame) -> alt.TopLevelMixin:
    """A panel per layer, and one for the dropped tokens."""
    color = alt.Color(
        "load:Q",
        title="load",
        scale=alt.Scale(scheme="blueorange", domain=[0, 1, max(2.0, float(table.load.max()))]),
        legend=alt.Legend(orient="bottom", tickCount=5, format=".2~f"),
    )
    layers = list(dict.fromkeys(table.layer))
    height = ROW * max(2, table.strategy.nunique())
    tips = ["strategy", "layer", "expert", alt.Tooltip("tokens:Q", format=","), alt.Tooltip("load:Q", format=".3f")]
    every = -(-table.expert.nunique() // 16)
    axis = alt.Axis(labelAngle=0, labelExpr=f"datum.value % {every} == 0 ? datum.label : ''", ticks=False)
    panels = [
        alt.Chart(table[table.layer == layer], title=layer, width=WIDTH / len(layers), height=height)
        .mark_rect()
        .encode(
            alt.X("expert:O", title="expert", axis=axis),
            strategies(table) if number == 0 else strategies(table).axis(None),
            color,
            tooltip=tips,
        )
        for number, layer in enumerate(layers)
    ]
    of_strategy = table.drop_duplicates("strategy")
    dropped = (
        alt.Chart(of_strategy, title="dropped tokens", width=80, height=height)
        .mark_text()
        .encode(strategies(table).axis(None), text=alt.Text("dropped:Q", format=","), tooltip=["strategy", "dropped"])
    )
    return alt.hconcat(*panels, dropped, spacing=8)
