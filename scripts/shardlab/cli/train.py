"""Train one run: `shardlab launch` starts it on each rank."""

import argparse
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

from shardlab.errors import UserError
from shardlab.runs import signals
from shardlab.runs.images import origin_of
from shardlab.settings.types import read_run


def main() -> int:
    """Read the frozen settings, train, save."""
    signals.obey()
    signals.listen(signals.WARNINGS)
    if "RANK" in os.environ:
        signals.name(f"rank {os.environ['RANK']}")
    signals.die_with_parent(signal.SIGKILL, int(os.environ.get(signals.TORCHRUN, 0)))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--weights", type=Path, required=True, help="initial weights, the same for every strategy")
    parser.add_argument("--output", type=Path, required=True, help="folder for weights, metrics and train.json")
    parser.add_argument("--resume", type=Path, help="checkpoint to resume from, of any strategy on any ranks")
    parser.add_argument("--restart", action="store_true", help="start at the first step, ignoring checkpoints")
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard's event files")
    parser.add_argument("--attempt", type=int, help="number of this attempt at the run")
    parser.add_argument("--commit", help="commit of the working tree, for train.json")
    parser.add_argument("--image", type=Path, help="report of the image that this runs in, for train.json")
    args = parser.parse_args()
    # After installing the signal handlers: these imports take seconds.
    from shardlab.runtime import distributed
    from shardlab.train import loop

    run = read_run(args.settings)
    origin = origin_of(args.commit, args.image) | {"attempt": args.attempt}
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(args.output / "nccl_rank_"))
    distributed.start(run.site, run.site.hang_seconds)
    if distributed.is_main():
        applied = logging.getLogger("shardlab")  # strategies log what they do to the model
        applied.addHandler(logging.StreamHandler(sys.stdout))
        applied.setLevel(logging.INFO)
    try:
        options = loop.TrainOptions(
            resume=args.resume,
            restart=args.restart,
            tensorboard=args.tensorboard,
            on_start=signals.listen,
        )
        ended = loop.train(run, args.data, args.weights, args.output, origin, options)
    except UserError:
        raise
    except Exception as error:
        traceback.print_exc()
        # The ranks that wait for a failed one have less to report than that one.
        kind = "note" if distributed.is_peer_failure(error) else "error"
        rank = os.environ.get("RANK", "0")
        sys.exit(
            f"{kind}: rank {rank} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    distributed.finish(0 if ended else STOPPED)
    signals.obey()
    return 0 if ended else STOPPED


STOPPED = 3
"""Exit status of a rank that saved and stopped on request."""
