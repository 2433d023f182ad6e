"""``python -m shardlab VERB``, or where nothing is installed ``python scripts/shardlab VERB``."""

import os
import sys

if not __package__:  # sys.path begins with this folder, whose modules would be taken for others of the same name
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120

from shardlab.cli import main

if __name__ == "__main__":
    main()
