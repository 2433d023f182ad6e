"""Check what a script left, and write train.json; `shardlab launch` starts it
once all ranks of the script have ended.
"""

from shardlab.data import store
from shardlab.runs import script_place
from shardlab.runs.images import origin_of
from shardlab.settings.types import read_run


def main() -> None:
    """Check and write."""
    args = script_place.arguments(__doc__)
    from shardlab.runtime import distributed  # imports take seconds
    from shardlab.train import script_report

    run = read_run(args.settings)
    distributed.start(run.site)
    origin = origin_of(args.commit, args.image)
    fingerprint = store.fingerprint_of(args.data)
    script_report.accept(run, args.data, args.weights, args.output, fingerprint, origin)
