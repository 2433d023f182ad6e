"""Print the bill of a folder's jobs: hours requested, used and used by starts that failed, by stage, from Slurm's
accounting.

Example: shardlab bill --config site=engaging
"""

from pathlib import Path

from shardlab.cli import program
from shardlab.runs.bill import bill
from shardlab.settings.config import Config


@program
def main(config: Config, results: Path) -> None:
    """Print it."""
    print(bill(config, results.resolve().parent))
