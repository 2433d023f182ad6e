"""Summarize all runs: summary.csv for programs, summary.md for people, for a sweep also sweep.csv. Prints the matrix of
test losses and the verdict, which names missing runs.
"""

import argparse

from shardlab.cli import at_least
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.report import summary, summary_markdown, sweep_table, verdict
from shardlab.settings import load


def main() -> None:
    """Read the reports, write both tables, print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    load.add_config_argument(parser)
    load.add_results_argument(parser)
    parser.add_argument("--check", action="store_true", help="fail unless every run is done and none is unequal")
    parser.add_argument(
        "--tolerance",
        type=at_least(0.0),
        help="maximum relative difference of final losses that count as equal (default: by dtype)",
    )
    args = parser.parse_args()
    table, left_out = summary.judged(args.config, args.results, args.tolerance)
    unused = summary.OF_AVERAGES if table.ema_test_loss.isna().all() else []
    write_text(args.results / "summary.csv", table.drop(columns=unused).to_csv(index=False))
    write_text(args.results / "summary.md", summary_markdown.markdown(table, args.config, left_out))
    if args.config.sweep:
        write_text(args.results / sweep_table.FILE, sweep_table.table(table).to_csv(index=False))
    good, sentence = verdict.verdict(table)
    if args.check and not good:
        raise UserError(sentence)
    print(summary_markdown.screen(table, args.config, args.results))
