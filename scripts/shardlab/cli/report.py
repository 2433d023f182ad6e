"""Draw the report of all runs: report.html, one file that opens without a
network, and its charts as SVG and CSV.

Example: shardlab report --results results
"""

import shutil
from pathlib import Path
from typing import Annotated

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.report import summary, summary_markdown, sweep_table, verdict
from shardlab.settings.config import Config


@program
def main(config: Config, results: Path) -> None:
    """Read the reports, draw the charts, write the page."""
    from shardlab.report import charts, html, run_data  # imports take seconds

    table, left_out = summary.judged(config, results)
    _, workloads = summary_markdown.axes(table, config, left_out)
    found = run_data.collect(table, results, workloads)
    drawn = charts.draw(found, workloads)
    text = html.html(found, drawn, config, left_out, results)
    write_text(results / "report.html", text)
    new = results / ".charts.new"
    shutil.rmtree(new, ignore_errors=True)
    for name, (figures, specification) in drawn.items():
        write_text(new / f"{name}.csv", figures.to_csv(index=False))
        write_text(new / f"{name}.svg", charts.svg(specification))
    shutil.rmtree(results / "charts", ignore_errors=True)
    if drawn:
        new.replace(results / "charts")
    print(f"{results}/report.html: {len(found.runs)} runs, {len(drawn)} charts.")


@program
def summarize(
    config: Config,
    results: Path,
    check: Annotated[bool, "fail unless every run is done and none is unequal"] = False,
) -> None:
    """Summarize all runs: summary.csv for programs, summary.md for people, for a sweep also sweep.csv.

    Prints the matrix of test losses and the verdict, which names missing runs.
    """
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
