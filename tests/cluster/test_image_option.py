"""An image as an option of srun, which a plugin of the cluster's Slurm adds (image_option.c)."""

import shutil

import pytest
import yaml

from login import own

pytestmark = pytest.mark.timeout(900)
IMAGE = "docker://registry/training:1"
SAY = 'echo "step in $SHARDLAB_TEST_IMAGE, $PWD, $OMP_NUM_THREADS threads"'


def test_srun_gets_the_image_and_sbatch_does_not(learner):
    """On two nodes. The job itself, which needs Slurm's commands, stays outside.

    The plugin starts nothing; that the image's Python has PyTorch is imitated by a command that Python is taken for.
    """
    inside = learner.path / "python-inside"
    inside.write_text(f'#!/bin/sh\nexec apptainer exec --bind {learner.path} containers/train.sif python "$@"\n')
    inside.chmod(0o755)
    container = {
        "srun_options": ["--container-image={image}"],
        "image": IMAGE,
        "image_is": "name",
        "command": "no-such-program",
        "python": str(inside),
    }
    sites = learner.path / "config/sites"
    settings = yaml.safe_load((sites / "test.yaml").read_text())
    settings |= {"container": settings["container"] | container, "setup_commands": [SAY]}
    (sites / "image_option.yaml").write_text(yaml.safe_dump(settings))
    shutil.rmtree(learner.path / "results")  # the copy's settings are those of site test
    own(learner.path)
    learner.snakemake("results/ddp/mlp.done", config=["nodes=2", "site=image_option"])
    run = learner.path / "results/ddp/mlp"
    log = (run / "attempts/001.log").read_text()
    assert log.count(f"step in {IMAGE}, {learner.path}, 1 threads\n") == 2
    assert (run / "logs/train.log").read_text().count(f" --container-image={IMAGE} bash -c ") == 1
    # sbatch of this cluster, like that of a real one, may not have the option at all.
    refused = learner.run("sbatch", "--account=teaching", f"--container-image={IMAGE}", "--wrap=true", check=False)
    assert "unrecognized option" in refused.stdout
