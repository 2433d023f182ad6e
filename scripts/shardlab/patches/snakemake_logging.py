"""Snakemake's log on a terminal: colors, and which handler writes it."""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

LOGGER = "snakemake.logging"
TERMINAL_HANDLER = "DefaultStreamHandler"
"""Name of the handler that Snakemake writes to a terminal with."""


def respect_no_color() -> None:
    """Turn off the colors of Snakemake's own lines if NO_COLOR is set (no-color.org), which it does not read."""
    for handler in logging.getLogger(LOGGER).handlers:
        if os.environ.get("NO_COLOR") and hasattr(handler, "nocolor"):
            handler.nocolor = True


def replace_terminal_handlers(make: Callable[[Any, logging.Handler], logging.Handler]) -> None:
    """Replace each handler that writes to a terminal by what ``make(stream, handler)`` returns."""
    logger = logging.getLogger(LOGGER)
    for old in [handler for handler in logger.handlers if handler.name == TERMINAL_HANDLER]:
        stream = getattr(old, "stream", sys.stderr)
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            logger.removeHandler(old)
            logger.addHandler(make(stream, old))
