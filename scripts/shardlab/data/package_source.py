"""Source text of scikit-learn and SciPy, one sample per file."""

from pathlib import Path
from typing import Any

from shardlab.data import split
from shardlab.data._packages import sources
from shardlab.settings.types import DataSet


def read(data: DataSet, raw: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Samples (text,), about ``characters`` in total; each file is in only one split."""
    left, samples = data.options["characters"], []
    # Keep one very long module from being most of a split.
    longest = left // 40
    for text in sources(data.seed):
        if left <= 0:
            break
        samples.append((text[: min(left, longest)],))
        left -= len(samples[-1][0])
    return split(samples, data.seed)
