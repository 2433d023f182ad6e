"""``python -m traindiff OTHER REFERENCE``."""

import sys

from traindiff.command_line import main

if __name__ == "__main__":
    sys.exit(main())
