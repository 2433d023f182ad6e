"""Summarize all runs: summary.csv for programs, summary.md for people, for a sweep also sweep.csv. Prints the matrix of
test losses and the verdict, which names missing runs.
"""

from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.report import summary, summary_markdown, sweep_table, verdict
from shardlab.settings.config import Config


@program
def main(
    config: Config,
    results: Path,
    check: Annotated[bool, "fail unless every run is done and none is unequal"] = False,
) -> None:
    """Read the reports, write both tables, print the verdict."""
    table, left_out = summary.judged(config, results)
    unused = summary.OF_AVERAGES if table.ema_test_loss.isna().all() else []
    write_text(results / "summary.csv", table.drop(columns=unused).to_csv(index=False))
    write_text(results / "summary.md", summary_markdown.markdown(table, config, left_out))
    if config.sweep:
        write_text(results / sweep_table.FILE, sweep_table.table(table).to_csv(index=False))
    good, sentence = verdict.verdict(table)
    if check and not good:
        raise UserError(sentence)
    print(summary_markdown.screen(table, config, left_out))
