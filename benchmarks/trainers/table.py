"""Tables of results: as CSV files, and printed as Markdown."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from shardlab.files import write_text


class Table:
    """Markdown table that is printed row by row; the file has all printed rows."""

    def __init__(self, path: Path, columns: Iterable[str], shown: Callable[[float], str]) -> None:
        self.path, self.columns, self.shown = path, list(columns), shown
        self.rows: list[dict[str, Any]] = []

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Print and write more rows."""
        if not self.rows:
            print(f"\n| {' | '.join(self.columns)} |\n|{' --- |' * len(self.columns)}")
        for row in rows:
            print(f"| {' | '.join(self._shown(row.get(column)) for column in self.columns)} |", flush=True)
        self.rows += rows
        write_text(self.path, pd.DataFrame(self.rows, columns=self.columns).to_csv(index=False))

    def _shown(self, value: Any) -> str:
        if isinstance(value, float):
            return self.shown(value)
        return "" if value is None else str(value)
