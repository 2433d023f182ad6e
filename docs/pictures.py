#!/usr/bin/env python3
"""Take the pictures of the README in Debian's Chromium: of a report, and of the end of `make run` on a terminal.

Example: make matrix, then make pictures
"""

import argparse
import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tests", "scripts")]

from helpers.browser import Page, opened  # noqa: E402
from shardlab.launch.progress import finished  # noqa: E402

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1280, 900
PICTURES = {"report-equality.png": "#equality", "report-charts.png": "#llama2"}
"""File: what stands at its top."""
TERMINAL, LINES = "make-run.png", 8
"""The picture of the terminal, and how many finished runs it shows above the matrix."""


def main() -> None:
    """Open the report, go to each place, take a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=Path("results/report.html"), help="the report")
    args = parser.parse_args()
    with opened(args.report, WIDTH) as page:
        page.draw_all()
        for name, place in PICTURES.items():
            page.driver.execute_script(f"document.querySelector('{place}').scrollIntoView({{behavior: 'instant'}})")
            time.sleep(1)
            save(page, name)
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "terminal.html"
        picture.write_text(terminal(args.report.parent), encoding="utf-8")
        with opened(picture, WIDTH) as page:
            save(page, TERMINAL)


def save(page: Page, name: str) -> None:
    """Save what the page shows, without the empty space below it."""
    image = Image.open(io.BytesIO(page.driver.get_screenshot_as_png())).convert("RGB")
    bottom = page.driver.execute_script(
        "return (document.querySelector('body > svg') || document.body).getBoundingClientRect().bottom"
    )
    image = image.crop((0, 0, image.width, min(image.height, int(bottom) + 1)))
    image.quantize(128).save(DOCS / name, optimize=True)
    print(f"docs/{name}: {(DOCS / name).stat().st_size // 1024} KiB")


def terminal(results: Path) -> str:
    """A page with what `make run` writes at its end: the last runs that finished, and what summarize.py printed."""
    console = Console(record=True, width=100, file=io.StringIO(), highlight=False)
    console.print("$ make run\n[dim]...[/dim]")
    last = sorted(results.glob("*/*/test.json"), key=lambda path: path.stat().st_mtime)[-LINES:]
    for path in last:
        console.print(finished({"strategy": path.parts[-3], "workload": path.parts[-2]}, results), markup=False)
    console.print()
    console.print((results / "logs/summarize.log").read_text(encoding="utf-8"), markup=False)
    svg = console.export_svg(title="make run")
    return f'<body data-ready="yes" style="margin: 0; width: {WIDTH}px">{svg}</body>'


if __name__ == "__main__":
    main()
