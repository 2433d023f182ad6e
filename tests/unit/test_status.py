"""What happens next with a run, and how far it is; looking changes nothing."""

import fcntl
import shutil

from helpers.common import program, save_initial, tiny_run
from shardlab.records import manifest
from shardlab.runs.run_status import NOT_BEGUN, next_action, queue
from shardlab.runs.slurm_reattach import name_of
from shardlab.train import loop

RUN = tiny_run("mlp", "ddp")


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
    assert said() == "resumable from step 4; never begun"
    other = run.model_copy(update={"seed": 7})
    assert said(other) == "checkpoint with a different seed: change it back, or train with --config restart=true"
    (manifest.place(folder, 4) / "manifest.json").write_text("{}")
    assert said().startswith("resumable from step 2; never begun (")
    assert "step-00000004/manifest.json" in said()
    shutil.rmtree(folder / "checkpoints")
    assert said() == NOT_BEGUN


def test_a_run_whose_job_waits_and_why(tmp_path, monkeypatch):
    """The queue is asked once for all runs."""
    name = name_of(tmp_path)
    answers = [
        "7|QOSMaxGRESPerUser|rule_train_wildcards_ddp_mlp",
        "8|None|rule_train_wildcards_fsdp_tp_mlp",
        "9|Priority|rule_evaluate_wildcards_single_mlp",
    ]
    program(tmp_path / "bin/squeue", f"echo \"$*\" >> {tmp_path}/asked\nprintf '%s\\n' '{chr(10).join(answers)}'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    queued = queue(tmp_path)
    assert queued == {"ddp/mlp": "job 7 waits: QOSMaxGRESPerUser", "fsdp_tp/mlp": "job 8"}
    assert (tmp_path / "asked").read_text().count(f" --name={name} ") == 1
    action = next_action(RUN, tmp_path / "ddp/mlp", queued)
    assert action == "job 7 waits: QOSMaxGRESPerUser; the next call follows it"
