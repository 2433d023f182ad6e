"""A job: a stage's program, started where the site says, waited for, and said of how it ended."""

import argparse
import signal
import subprocess
import time
from pathlib import Path

from shardlab.data import store
from shardlab.errors import UserError
from shardlab.files import COMMAND, ROOT, lock
from shardlab.runs import commands, script_place, signals, slurm
from shardlab.runs.attempts import AttemptLog, requested
from shardlab.runs.images import read_image
from shardlab.runs.managed_process import Child
from shardlab.runs.stages import STAGES, Scope, scope
from shardlab.settings.types import Ranks, Run, read_ranks, read_run


def main(description: str | None) -> int:
    """Check what the stage needs, start it, and report how it ended; the ``main`` of `shardlab launch`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("stage", choices=STAGES, metavar="STAGE", help=f"program to start: {', '.join(STAGES)}")
    parser.add_argument("--settings", type=Path, required=True, help="run.json of the run, or site.json")
    parser.add_argument("--data", type=Path, help="folder of the prepared data set")
    parser.add_argument("--image", type=_path, help="report of the image, if the site uses one")
    parser.add_argument("--weights", type=Path, help="weights that the stage starts from")
    parser.add_argument("--done", type=Path, help="train: file to write last, when everything else is written")
    parser.add_argument("--restart", action="store_true", help="train: start at the first step, ignoring checkpoints")
    parser.add_argument("--dry-run", action="store_true", help="print the shell lines and stop")
    args, others = parser.parse_known_args()

    stage = STAGES[args.stage]
    run = read_run(args.settings) if stage.settings is Run else read_ranks(args.settings)
    image = image_of(run, args.image, dry_run=args.dry_run)
    verb = "train_script" if args.stage == "train" and isinstance(run, Run) and run.script else args.stage
    program = [str(COMMAND), verb, *[f"--settings={args.settings}"] * stage.reads_settings, *others]
    if args.data:
        program.append(f"--data={args.data}")
    if args.weights:
        program.append(f"--weights={args.weights}")
    if args.stage == "train":
        program += [f"--image={args.image}"] * bool(args.image) + commit()
    if args.dry_run or args.stage != "train":
        command = commands.command(run, program, image, scope(args.stage, run))
        print(command.lines, flush=True)
        if args.dry_run:
            return 0
    check_place(run, image)
    if not isinstance(run, Run):
        return Child(run, args.stage).run(command)
    fingerprint = store.verify(args.data, run.data) if args.data else ""
    if args.stage != "train":
        return Child(run, f"{args.stage} of {run.workload}").run(command)
    folder = args.settings.parent
    patience = 2 * run.site.stop_seconds + 5  # for the ranks of a call that has ended
    try:
        with lock(folder / ".lock", "trained", slurm.holder(), slurm.in_queue, patience) as descriptor:
            story = AttemptLog(run, folder, fingerprint, args.weights)
            return train(run, story, program, image, args.done, descriptor, restart=args.restart)
    except Stopped as stopped:
        if slurm.requeue(stopped.why):
            print("The job was requeued.", flush=True)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(60)  # Slurm ends this process
        raise


def _path(text: str) -> Path | None:
    return Path(text) if text else None  # rules have an image or none


STOPPED_BY = {
    "SIGINT": "interrupted by the user",
    "SIGHUP": "its terminal was closed",
    "SIGUSR1": "its job is near its time limit",
    slurm.TIME_LIMIT: "its job is near its time limit",
    signals.DRIVER_ENDED: "its driver ended",
}
"""Reasons to stop a training, by signal or keyword."""


class Stopped(UserError):
    """A training saved and stopped on request; ``why`` is the reason."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


def train(
    run: Run,
    story: AttemptLog,
    program: list[str],
    image: str | None,
    done: Path | None,
    descriptor: int,
    *,
    restart: bool,
) -> int:
    """Train a run to its end, from its current state; may be called any number of times.

    Raises:
        Stopped: it received a stop signal.
        UserError: it failed, or further attempts are pointless.
    """
    name = f"{run.strategy} x {run.workload}"
    finished = story.finished()
    # A call starts from scratch only once: a requeued job resumes.
    restart = restart and not story.tried_by_this_call()
    # Snakemake re-requests a finished run after --force, or if its driver died.
    if finished == story.identity and not (restart or requested(story.folder, story.identity)):
        print(f"{name} is already finished; nothing is trained again.", flush=True)
        return story.note_done(done)
    story.stop_if_no_progress()
    restart = restart or story.begins_afresh(finished)
    if run.script and not restart:
        story.check_script_checkpoints()
    story.forget_done(done, checkpoints=restart and not any(word.startswith("--resume") for word in program))
    if run.script:
        script_place.clear(story.folder)
    child = Child(run, name, descriptor, story.folder)
    with story.attempt() as attempt:
        options = [*program, f"--attempt={attempt.number}"] + ["--restart"] * restart
        command = commands.command(run, options, image, scope("train", run))
        print(f"{command.lines}\n\nattempt {attempt.number}; its output is in {story.log(attempt)}", flush=True)
        status = child.run(command, story.log(attempt))
        if run.script and status == 0:
            check = commands.command(run, [*options, "--accept"], image, Scope.ONE)
            status = child.run(check, story.log(attempt), again=True)
        stop_signal = child.stop_signal or story.stopped(attempt)
        if not story.stopped(attempt) and story.error(attempt):  # whatever was requested, this is what happened
            stop_signal = None
        if status == 0 and story.finished() == story.identity:
            attempt.why = "finished"
        elif stop_signal:
            attempt.why = f"stopped: {stop_signal}"
        else:
            attempt.why = story.sentence(attempt, status)
    if attempt.why == "finished":
        return story.note_done(done)
    if not stop_signal:
        raise UserError(attempt.why.removeprefix("error: "))
    why = STOPPED_BY.get(stop_signal, "its job was cancelled or preempted")
    saved = f"Steps saved: {attempt.saved or 0}; the same command resumes there."
    if run.script:
        saved = f"The same command starts {run.script} again, with what it saved in its checkpoints folder."
    raise Stopped(f"{name} stopped on request ({stop_signal}): {why}. {saved}", stop_signal)


def image_of(run: Ranks, report: Path | None, *, dry_run: bool) -> str | None:
    """Return the image to run in, or None for a site without one; in a dry run it may not exist yet.

    Raises:
        UserError: the site uses an image and none is given, or it is missing.
    """
    if run.site.container is None:
        return None
    if report is None and dry_run:
        return "IMAGE"
    if report is None:
        raise UserError(f"site {run.site_name} runs in an image; name its report with --image.")
    return read_image(report).path


def check_place(run: Ranks, image: str | None) -> None:
    """Check that this machine can start what the site starts.

    Raises:
        UserError: srun cannot start programs here, or the program that starts images is not on the PATH.
    """
    if run.site.srun and slurm.job_id() is None:
        raise UserError(
            f"site {run.site_name} starts ranks with srun, inside a Slurm job, and this is not one; "
            "run snakemake with --profile slurm, or choose site local."
        )
    if run.site.container and image and (reason := commands.missing(run.site.container)):
        raise UserError(f"{reason}.")


def commit() -> list[str]:
    """Return `shardlab train`'s option with the commit of the working tree: the image may not have git."""
    if not (ROOT / ".git").exists():
        return []
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [f"--commit={done.stdout.strip()}"]
