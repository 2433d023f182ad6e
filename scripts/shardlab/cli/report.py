"""Draw the report of all runs: report.html, one file that opens without a
network, and its charts as SVG and CSV.

Example: shardlab report --results results
"""

import argparse
import shutil

from shardlab.files import write_text
from shardlab.report import charts, html, run_data, summary, summary_markdown
from shardlab.settings import load


def main() -> None:
    """Read the reports, draw the charts, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    load.add_results_argument(parser)
    args = parser.parse_args()
    table, left_out = summary.judged(args.config, args.results)
    _, workloads = summary_markdown.axes(table, args.config, left_out)
    found = run_data.collect(table, args.results, workloads)
    drawn = charts.draw(found, workloads)
    text = html.html(found, drawn, args.config, left_out, args.results)
    write_text(args.results / "report.html", text)
    new = args.results / ".charts.new"
    shutil.rmtree(new, ignore_errors=True)
    for name, (figures, specification) in drawn.items():
        write_text(new / f"{name}.csv", figures.to_csv(index=False))
        write_text(new / f"{name}.svg", charts.svg(specification))
    shutil.rmtree(args.results / "charts", ignore_errors=True)
    if drawn:
        new.replace(args.results / "charts")
    print(f"{args.results}/report.html: {len(found.runs)} runs, {len(drawn)} charts.")
