#!/usr/bin/env python3
"""Take the pictures of the README from a report, in Debian's Chromium.

Example: make matrix, then make pictures
"""

import argparse
import io
import sys
import time
from pathlib import Path

from PIL import Image

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tests", "scripts")]

from helpers.browser import opened  # noqa: E402

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1280, 900
PICTURES = {"report-equality.png": "#equality", "report-charts.png": "#llama2"}
"""File: what stands at its top."""


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
            image = Image.open(io.BytesIO(page.driver.get_screenshot_as_png()))
            image.quantize(128).save(DOCS / name, optimize=True)
            print(f"docs/{name}: {(DOCS / name).stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
