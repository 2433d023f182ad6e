"""Train one run: `shardlab launch` starts it on each rank."""

import logging
import os
import signal
import sys
import traceback
from pathlib import Path

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.runs import signals
from shardlab.runs.images import origin_of
from shardlab.settings.types import read_run


@program
def main(
    settings: Path,
    data: Path,
    weights: Path,
    output: Path,
    resume: Path | None = None,
    restart: bool = False,
    tensorboard: bool = False,
    attempt: int | None = None,
    commit: str | None = None,
    image: Path | None = None,
) -> int:
    """Read the frozen settings, train, save."""
    signals.obey()
    signals.listen(signals.WARNINGS)
    if "RANK" in os.environ:
        signals.name(f"rank {os.environ['RANK']}")
    signals.die_with_parent(signal.SIGKILL, int(os.environ.get(signals.TORCHRUN, 0)))
    # After installing the signal handlers: these imports take seconds.
    from shardlab.runtime import distributed
    from shardlab.train import loop

    run = read_run(settings)
    origin = origin_of(commit, image) | {"attempt": attempt}
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(output / "nccl_rank_"))
    distributed.start(run.site, run.site.hang_seconds)
    if distributed.is_main():
        applied = logging.getLogger("shardlab")  # strategies log what they do to the model
        applied.addHandler(logging.StreamHandler(sys.stdout))
        applied.setLevel(logging.INFO)
    try:
        options = loop.TrainOptions(resume=resume, restart=restart, tensorboard=tensorboard, on_start=signals.listen)
        ended = loop.train(run, data, weights, output, origin, options)
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
    distributed.finish(0 if ended else signals.STOPPED)
    signals.obey()
    return 0 if ended else signals.STOPPED


@program
def train_script(
    settings: Path,
    data: Path,
    weights: Path,
    output: Path,
    attempt: int = 1,
    commit: str | None = None,
    image: Path | None = None,
    restart: bool = False,
    tensorboard: bool = False,
    accept: bool = False,
) -> int:
    """Run a script as one rank of a training: `shardlab launch` starts it on each rank of such a strategy.

    With --accept, once all ranks have ended, check what the script left and write train.json. --restart and
    --tensorboard are ignored: the script's checkpoints are removed already, and it writes its own files.
    """
    if not accept:
        signals.listen()
    # After installing the signal handlers: imports take seconds.
    from shardlab.data import store
    from shardlab.runs import script_place, script_rank
    from shardlab.settings import code_fingerprint

    run = read_run(settings)
    if accept:
        from shardlab.runtime import distributed
        from shardlab.train import script_report

        distributed.start(run.site)
        origin = origin_of(commit, image)
        script_report.accept(run, data, weights, output, store.fingerprint_of(data), origin)
        return 0
    rank = int(os.environ.get("RANK", 0))
    signals.name(f"rank {rank} of script")
    if rank == 0:
        code_fingerprint.check_script_unchanged(str(run.script), run.sources)
    options = {"run": settings, "data": data, "weights": weights, "output": output / script_place.OUTPUT}
    words = [word for name, path in options.items() for word in (f"--{name}", str(path.absolute()))]
    recorder = script_rank.Recorder(run, data, output, attempt) if rank == 0 else None
    return script_rank.supervise(run, rank, words, output, recorder)
