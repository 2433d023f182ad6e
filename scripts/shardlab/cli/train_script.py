"""Run a script as one rank of a training: `shardlab launch` starts it on each rank of a strategy that names a script.

It starts at its first step by itself with --restart, as its checkpoints are removed, and writes its own event files.
"""

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
) -> int:
    """Start the script, follow it to its end."""
    signals.listen()
    from shardlab.runs import cpu_binding, script_place, script_rank
    from shardlab.settings import scripts
    from shardlab.settings.types import read_run

    run = read_run(settings)
    cpu_binding.bind(run.site.cpu_binding)
    rank = script_rank.number(run)
    signals.name(f"rank {rank} of script")
    if rank == 0:
        scripts.check_unchanged(str(run.script), run.sources)
    options = {"run": settings, "data": data, "weights": weights, "output": output / script_place.OUTPUT}
    words = [word for name, path in options.items() for word in (f"--{name}", str(path.absolute()))]
    recorder = script_rank.Recorder(run, data, output, attempt) if rank == 0 else None
    return script_rank.supervise(run, words, output, recorder)
