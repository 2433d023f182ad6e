"""A training whose processes are killed repeatedly; a seed chooses the process, the time and the signal."""

import atexit
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from safetensors.numpy import load_file

from helpers.common import ROOT, save_initial, tiny_run
from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.files import write_json
from shardlab.runs import commands, forkserver

MARK = "SHARDLAB_TRIAL"
"""Environment variable by which all processes of a trial are found, whoever their parent is by now."""
ROLES = ("launch", "torchrun", "rank 0", "rank 1", "job", "monitor")
"""The last two exist with a fork server: the fork of `shardlab launch`, and the process that waits for it."""
TORCHRUN = "pt_elastic"
"""What torchrun names itself."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
STEPS = 60
GIVEN = 40
"""Seconds: torchrun gives 30 to a rank that cannot handle its signal. No rank may train for more than 2 s, though."""
STRATEGIES = ("fsdp", "zero2")


@cache
def server(command):
    """Environment with which verbs of a command are forked from a server that has imported PyTorch; it ends with this
    process.
    """
    site = tiny_run("mlp").site
    variables = commands.environment(site)
    inherited = {key: value for key, value in os.environ.items() if key not in site.environment_clear}
    folder = Path(tempfile.mkdtemp(prefix="shardlab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with forkserver.listen(folder) as listener:
        subprocess.Popen(
            [sys.executable, command, "forkserver", folder, str(os.getpid()), *variables],
            stdin=listener.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=inherited | variables | {"PYTHONPATH": str(ROOT / "scripts")},
            start_new_session=True,
        )
    return {forkserver.ADDRESS: str(folder)}


class Trial:
    """One run on two ranks in a separate folder."""

    def __init__(self, folder, strategy, scripts=ROOT / "scripts", hang_seconds=60, stop_seconds=10, **recipe):
        self.folder, self.strategy, self.scripts = folder / "results" / strategy / "llama2", strategy, scripts
        self.data, self.initial, self.temporary = folder / "data", folder / "initial.safetensors", folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        recipe = {"dtype": "float32", "epochs": 200, "max_steps": STEPS, "checkpoint_interval_steps": 5} | recipe
        run = tiny_run("llama2", strategy, **recipe)
        site = run.site.model_copy(update={"hang_seconds": hang_seconds, "stop_seconds": stop_seconds})
        self.run = run.model_copy(update={"site": site})
        if scripts != ROOT / "scripts":  # a copy to put mistakes into: it is not the code of the settings
            model = run.model.model_copy(update={"sources": {}})
            self.run = self.run.model_copy(update={"sources": {}, "model": model})
        if not self.initial.exists():
            store.write(self.data, run.data, *encode(run.data, data_sets.read(run.data, folder)))
            save_initial(run, self.initial)
        write_json(self.folder / "run.json", self.run.model_dump())
        self.mark = self.call = f"{os.getpid()}-{time.monotonic_ns()}"

    def start(self, **environment):
        """Start `shardlab launch`, which delegates to a fork server; returns the process."""
        paths = {"settings": self.folder / "run.json", "data": self.data, "weights": self.initial}
        options = [f"--{key}={path}" for key, path in paths.items()]
        words = ["train", *options, f"--output={self.folder}", f"--done={self.folder}.done"]
        with (self.folder / "launch.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, self.scripts / "shardlab", "launch", *words],
                cwd=self.folder,
                env=os.environ
                | {MARK: self.mark, "SHARDLAB_CALL": self.call, "TMPDIR": str(self.temporary)}
                | server(self.scripts / "shardlab")
                | environment,
                stdout=log,
                stderr=log,
            )

    def processes(self):
        """Role: process id, of all that live."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                # The environment of a fork is that of its server; its folder is its own.
                marked = f"{MARK}={self.mark}\0" in (place / "environ").read_text()
                if not marked and (place / "cwd").readlink() != self.folder:
                    continue
                words, name = (place / "cmdline").read_text(), (place / "comm").read_text().strip()
                state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
                above = Path(f"/proc/{parent}/comm").read_text().strip()
            except OSError:
                continue
            if state == "Z":
                continue
            if "scripts/shardlab\0launch\0" in words:
                role = "launch"
            elif name == "launch":
                role = "job"
                if above == "fork monitor":
                    found["monitor"] = int(parent)
            elif name == TORCHRUN:
                role = "rank" if above == TORCHRUN else "torchrun"  # a fork has its parent's name at first
            elif name.startswith("rank "):
                role = name
            else:
                role = "rank" if "scripts/shardlab\0train\0" in words else f"other {place.name}"
            found[role] = int(place.name)
        return found

    def steps(self):
        """The steps of metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith('{"kind": "train"') and line.endswith("}")]

    def report(self):
        """Content of train.json."""
        return json.loads((self.folder / "train.json").read_text())

    def last(self):
        """Number of the last step."""
        steps = self.steps()
        return steps[-1]["step"] if steps else -1

    def ended_within(self, seconds):
        """Return whether all processes of the trial end within this time."""
        end = time.monotonic() + seconds
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.processes()

    def end(self):
        """Kill all remaining processes."""
        for number in self.processes().values():
            os.kill(number, signal.SIGKILL)


def kill_once(trial, chance):
    """Start the run and kill one of its processes; return what was done, or None if the run ended before."""
    role, number = chance.choice(ROLES), chance.choice(SIGNALS)
    before = trial.last()
    step = chance.randrange(max(before, 0), STEPS) if chance.random() < 0.75 else None
    moment = time.monotonic() + chance.uniform(0.5, 6)
    child = trial.start()
    started = time.monotonic()
    while child.poll() is None:
        if (trial.last() >= step and trial.last() != before) if step is not None else time.monotonic() > moment:
            break
        time.sleep(0.02)
    target = trial.processes().get(role)
    if child.poll() is not None or target is None:
        child.wait()
        return None
    os.kill(target, number)
    if number == signal.SIGKILL:
        time.sleep(2)
        step_then = trial.last()
    assert trial.ended_within(trial.run.site.stop_seconds + GIVEN), trial.processes()
    assert number != signal.SIGKILL or trial.last() == step_then, "something trained on two seconds after the kill"
    child.wait()
    at = f"step {step}" if step is not None else f"{time.monotonic() - started:.1f} s"
    return f"{trial.strategy}: {number.name} of {role} at {at}, {trial.last() + 1} steps"


def soak(folder, kills, seed):
    """Kill runs until there were ``kills`` kills; return them. Each run must end equal to an undisturbed one."""
    chance, done = random.Random(seed), []
    expected = {}
    for strategy in STRATEGIES:
        trial = Trial(folder / "whole", strategy)
        assert trial.start().wait() == 0, (trial.folder / "launch.log").read_text()
        expected[strategy] = weights(trial)
    while len(done) < kills:
        strategy = STRATEGIES[len(done) % 2]
        shutil.rmtree(folder / "trial", ignore_errors=True)
        trial, kills_of_it = Trial(folder / "trial", strategy), []
        try:
            for _ in range(chance.randint(1, 4)):
                if killed := kill_once(trial, chance):
                    kills_of_it.append(killed)
            end_well(trial, expected[strategy])
            for killed in kills_of_it:
                done.append(killed)
                print(f"{len(done)}: {killed}")
        finally:
            trial.end()
    return done


def end_well(trial, expected):
    """The same call finishes the run, with weights bitwise equal to those of an undisturbed one."""
    for _ in range(3):  # three failures in a row without a checkpoint are given up, in one call
        if trial.start().wait() == 0:
            break
        trial.call += "+"
    log = (trial.folder / "launch.log").read_text()
    assert Path(f"{trial.folder}.done").exists(), log
    assert [step["step"] for step in trial.steps()] == list(range(STEPS)), log
    assert all((weights(trial)[name] == value).all() for name, value in expected.items()), log
    assert trial.ended_within(2)
    assert not [*trial.temporary.iterdir()], "a run leaves nothing in the temporary folder"


def weights(trial):
    """Name to array."""
    return load_file(trial.folder / "model.safetensors")
