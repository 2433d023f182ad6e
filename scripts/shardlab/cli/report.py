"""Draw the report of all runs: report.html, one file that opens without a
network, and its charts as SVG and CSV.

Example: shardlab report --results results
"""

import shutil
from pathlib import Path

from shardlab.cli import program
from shardlab.files import write_text
from shardlab.report import charts, html, run_data, summary, summary_markdown
from shardlab.settings.config import Config


@program
def main(config: Config, results: Path) -> None:
    """Read the reports, draw the charts, write the page."""
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
