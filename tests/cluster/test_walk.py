"""The walk of an ordinary user: a first try, two calls at once, a kill, an edit; and what listens."""

from pathlib import Path

import pytest

from helpers.sockets import LOOPBACK, listening
from login import snakemake, steps, training_job, until

RUN = "ddp/llama2"
KEPT = "recipe={epochs: 100, max_steps: 600, checkpoint_interval_steps: 50}"


@pytest.mark.timeout(900)
def test_the_walk(learner):
    first = learner.start(*snakemake(f"results/{RUN}.done", config=[KEPT]))
    job = training_job(learner, RUN, first)
    until("its first steps", lambda: steps(learner, RUN) > 20)
    listens = listening(processes(learner.path))
    assert listens == {LOOPBACK}, "the job has one node"

    second = learner.start(*snakemake(f"results/{RUN}.done", config=[KEPT]))
    assert any("This call waits until that one has ended" in line for line in second.stdout)
    first.kill()
    first.wait()
    assert f"is Slurm job {job} of an earlier call; following it" in learner.finish(second).stdout
    (attempt,) = learner.json(f"results/{RUN}/train.json")["attempts"]
    assert (attempt["slurm_job_id"], steps(learner, RUN)) == (job, 600)

    place = "site_settings={slurm: {runtime: 30}, environment: {NCCL_DEBUG: INFO}}"
    learner.snakemake(f"results/{RUN}.done", config=[KEPT, place])
    assert learner.json(f"results/{RUN}/run.json")["site"]["environment"] == {"NCCL_DEBUG": "INFO"}
    assert len(learner.json(f"results/{RUN}/train.json")["attempts"]) == 1


def processes(folder):
    """Numbers of the processes that work in a folder, on the login node and on the others, without Slurm's srun."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cwd").readlink() == folder and (place / "comm").read_text() != "srun\n":
                yield place.name
        except OSError:
            continue
