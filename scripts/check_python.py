#!/usr/bin/env python3
"""Check in one sentence whether this Python is new enough; runs on any Python 3."""

import sys

if sys.version_info < (3, 11):
    found = ".".join(str(part) for part in sys.version_info[:3])
    sys.exit(
        "error: Shardlab needs Python 3.11 or newer, but %s is %s; "
        "name a newer one: make run PYTHON=python3.11" % (sys.executable, found)
    )
