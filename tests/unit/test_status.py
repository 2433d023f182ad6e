"""status.py describes the state of a run, and changes nothing."""

import fcntl
import shutil

from helpers.common import save_initial, tiny_run
from shardlab.records import manifest
from shardlab.runs.run_status import next_action
from shardlab.train import loop


def test_what_is_there_of_a_run(tiny_data, tmp_path):
    run = tiny_run("mlp", checkpoint_interval_steps=2)
    folder = tmp_path / "single" / "mlp"

    def said(run=run):
        return next_action(run, folder)

    assert said() == "not begun"
    save_initial(run, tmp_path / "initial")
    loop.train(run, tiny_data / "mlp", tmp_path / "initial", folder, {})
    assert said() == "finished, but not recorded by Snakemake: the next call uses it as it is"
    folder.with_suffix(".done").touch()
    assert said() == "done"
    with (folder / ".lock").open("w") as lock:
        lock.write("process 1 on here")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert said() == "alive: process 1 on here trains it; the next call follows it or waits for it"
    (folder / "train.json").unlink()
    assert said() == "resumable after step 4; never begun"
    other = run.model_copy(update={"seed": 7})
    assert said(other) == "checkpoint with a different seed: change it back, or train with --config restart=true"
    (manifest.place(folder, 4) / "manifest.json").write_text("{}")
    assert said().startswith("resumable after step 2; never begun (")
    assert "step-00000004/manifest.json" in said()
    shutil.rmtree(folder / "checkpoints")
    assert said() == "from its first step: no checkpoint; never begun"
