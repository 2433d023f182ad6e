"""A real browser, headless, for pages that a person will see: Debian's Chromium through its own driver."""

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

PROGRAMS = ("chromium", "chromedriver")
QUIET = ("disable-background-networking", "disable-component-update", "disable-sync", "disable-quic", "no-first-run")
"""Chromium's own calls to its maker's hosts."""

BLANK = """[...document.querySelectorAll('.chart:not(:has(canvas))')].filter((chart) => {
  const marks = [...chart.querySelectorAll('[role="graphics-object"] :is(.mark-rect, .mark-symbol, .mark-line) path')];
  const boxes = marks.filter((mark) => !mark.closest('.role-legend')).map((mark) => mark.getBoundingClientRect());
  const most = (side) => Math.max(...boxes.map((box) => box[side]));
  const least = (side) => Math.min(...boxes.map((box) => box[side]));
  return !(most("right") - least("left") > 2 && most("bottom") - least("top") > 2);
}).map((chart) => chart.dataset.spec)"""
"""Names of the drawn charts whose marks, without those of legends, cover nothing."""


@dataclass
class Page:
    """An open page."""

    driver: webdriver.Chrome

    def ask(self, expression):
        """Value of a JavaScript expression."""
        return self.driver.execute_script(f"return {expression}")

    def until(self, expression, seconds=20):
        """Wait for a JavaScript expression to be true."""
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def draw_all(self):
        """Bring all charts into view, and wait for them."""
        self.driver.execute_script("document.querySelectorAll('.chart').forEach((place) => draw(place))")
        self.until("document.querySelectorAll('.chart:not([data-drawn])').length === 0", 60)
        assert self.ask(BLANK) == []

    def complaints(self):
        """What the console says, and what was asked of a network."""
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        requested = [entry["message"] for entry in self.driver.get_log("performance")]
        return console + [each for each in requested if "requestWillBeSent" in each and '"url":"http' in each]

    def press(self, selector):
        """Press Enter on the first element of a CSS selector, as who has no mouse does."""
        self.driver.find_element("css selector", selector).send_keys(Keys.ENTER)


@contextmanager
def opened(path, width=1280, scheme="light"):
    """A page from a file, in a window of that width that prefers that colour scheme."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"no browser here: {', '.join(missing)} missing (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", *QUIET):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    home = tempfile.mkdtemp()  # Chromium writes into the user's own, whatever profile it is given
    places = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), home)
    service = webdriver.ChromeService(shutil.which("chromedriver"), env=os.environ | places)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        prefers = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", prefers)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(path.resolve().as_uri())
        page = Page(driver)
        page.until("document.body.dataset.ready === 'yes'")
        yield page
    finally:
        driver.quit()
        shutil.rmtree(home, ignore_errors=True)
