"""Run a script as one rank of a training: `shardlab launch` starts it on each rank of a strategy that names a script.

With --accept, once all ranks have ended, check what the script left and write train.json. --restart and --tensorboard
are ignored: the script's checkpoints are removed already, and it writes its own files.
"""

import os
from pathlib import Path

from shardlab.cli import program
from shardlab.runs import signals


@program
def main(
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
    """Start the script and follow it to its end, or check what it left."""
    if not accept:
        signals.listen()
    # After installing the signal handlers: imports take seconds.
    from shardlab.data import store
    from shardlab.runs import images, script_place, script_rank
    from shardlab.settings import code_fingerprint
    from shardlab.settings.types import read_run

    run = read_run(settings)
    if accept:
        from shardlab.runtime import distributed
        from shardlab.train import script_report

        distributed.start(run.site)
        origin = images.origin_of(commit, image)
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
