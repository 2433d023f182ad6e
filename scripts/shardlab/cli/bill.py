"""Write the bill of a folder's jobs: hours requested, used and used by starts that
failed, by stage and strategy, from Slurm's accounting.

Example: shardlab bill --config site=engaging
"""

import argparse

from shardlab.files import write_text
from shardlab.runs.bill import bill
from shardlab.settings import load


def main() -> None:
    """Write bill.md and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load.add_config_argument(parser)
    load.add_results_argument(parser)
    args = parser.parse_args()
    text = bill(args.config, args.results)
    write_text(args.results / "bill.md", text)
    print(text)
