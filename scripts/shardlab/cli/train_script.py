"""Run a script as one rank of a training: `shardlab launch` starts it on each
rank of a strategy that names a script.
"""

from shardlab.runs import signals


def main() -> int:
    """Start the script, follow it to its end."""
    signals.listen()
    from shardlab.runs import cpu_binding, script_place, script_rank
    from shardlab.settings import scripts
    from shardlab.settings.types import read_run

    args = script_place.arguments(__doc__)
    run = read_run(args.settings)
    cpu_binding.bind(run.site.cpu_binding)
    rank = script_rank.number(run)
    signals.name(f"rank {rank} of script")
    if rank == 0:
        scripts.check_unchanged(str(run.script), run.sources)
    output = args.output / script_place.OUTPUT
    options = {"run": args.settings, "data": args.data, "weights": args.weights, "output": output}
    words = [word for name, path in options.items() for word in (f"--{name}", str(path.absolute()))]
    recorder = script_rank.Recorder(run, args.data, args.output, args.attempt) if rank == 0 else None
    return script_rank.supervise(run, words, args.output, recorder)
