"""The table of a sweep: each variant over its seeds, the best one of each strategy and workload."""

import pandas as pd

from shardlab.settings import variants

FILE = "sweep.csv"
SEED = "seed"
MEASURED = {
    "validation_loss": "validation",
    "test_loss": "test",
    "metric_value": "metric",
    "samples_per_second": "samples_per_second",
}
"""Column of summary.csv: prefix of its mean and standard deviation."""


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per strategy, workload and values of the swept keys except the seed: strategy, workload, a column
    per key, runs (planned), done (finished), X_mean and X_std of each quantity over the finished runs (sample standard
    deviation, empty for one run), best: whether no other variant of its strategy and workload has a lower mean
    validation loss.

    ``runs``: a table like summary.csv.
    """
    named = pd.DataFrame(
        [_values(*names) for names in zip(runs.strategy, runs.workload, strict=True)], index=runs.index
    ).fillna("")
    keys = sorted(set(named.columns) - {"strategy", "workload", SEED})
    group = ["strategy", "workload", *keys]
    figures = runs[[*MEASURED]].astype("Float64").where(runs.status == "done")
    measured = pd.concat([named[group], figures], axis=1)
    grouped = measured.groupby(group, sort=False)
    variant_rows = grouped.size().rename("runs").to_frame()
    variant_rows["done"] = grouped.validation_loss.count()
    for column, name in MEASURED.items():
        variant_rows[f"{name}_mean"] = grouped[column].mean()
        variant_rows[f"{name}_std"] = grouped[column].std()
    variant_rows = variant_rows.reset_index()
    least = variant_rows.groupby(["strategy", "workload"]).validation_mean.transform("min")
    return variant_rows.assign(best=(variant_rows.validation_mean == least).fillna(False).astype(bool))


def _values(strategy: str, workload: str) -> dict[str, str]:
    """Return values as text: a value may be a number, a word, a list or nothing."""
    (base_strategy, first), (base_workload, second) = variants.parse(strategy), variants.parse(workload)
    values = {key: variants.text(key, value) for key, value in (first | second).items()}
    return {"strategy": base_strategy, "workload": base_workload, **values}


def keys(variant_rows: pd.DataFrame) -> list[str]:
    """Return the columns that define a variant."""
    return list(variant_rows.columns[2 : list(variant_rows.columns).index("runs")])


def sentences(variant_rows: pd.DataFrame) -> list[str]:
    """Describe the best variant of each strategy and workload, and its uncertainty."""
    texts = []
    for row in variant_rows[variant_rows.best].to_dict("records"):
        values = ", ".join(f"{key} {row[key]}" for key in keys(variant_rows) if row[key] != "") or "its only variant"
        spread = "" if pd.isna(row["validation_std"]) else f" ± {row['validation_std']:.2g}"
        seeds = f"{row['done']} run" + "s" * (row["done"] > 1)
        texts.append(
            f"`{row['strategy']}` x `{row['workload']}`: the lowest validation loss is {row['validation_mean']:.6g}"
            f"{spread} ({seeds}) with {values}."
        )
    return texts
