"""What goes wrong on a cluster: one clear sentence, a status that is not 0, and nothing lost."""

import os
import signal

import pytest

import cluster
from conftest import snakemake, training_job

pytestmark = pytest.mark.timeout(600)

FIRST = "results/single/mlp.done"


@pytest.fixture
def trained(learner):
    """A copy in which one run is done; afterwards it still is, whatever the test did."""
    learner.snakemake(FIRST)
    before = (learner.path / "results/single/mlp/model.safetensors").read_bytes()
    yield learner
    assert (learner.path / FIRST).exists()
    assert (learner.path / "results/single/mlp/model.safetensors").read_bytes() == before


def fails(learner, *config, target="results/ddp/mlp.done"):
    """Output of a call that must fail and leave no finished run."""
    done = learner.snakemake(target, "--retries=0", config=config, check=False)
    assert done.returncode != 0, done.stdout[-3000:]
    assert not (learner.path / target).exists()
    assert not list(learner.path.glob("results/**/.*.tmp"))
    return done.stdout


def test_wrong_account(trained):
    seen = fails(trained, "site_settings={slurm: {account: nobody}}")
    assert "The given account nobody appears to be invalid" in seen
    assert "teaching" in seen


def test_wrong_partition(trained):
    assert "invalid partition specified: express" in fails(trained, "site_settings={slurm: {partition: express}}")


def test_more_gpus_than_a_node_has_is_refused_before_anything_is_submitted(trained):
    seen = fails(trained, "ranks_per_node=8")
    assert "8 ranks per node are asked for, but a node of site test has 4; set ranks_per_node to 4 or less." in seen
    assert "submitted" not in seen
    seen = fails(trained, "ranks_per_node=8", "site_settings={ranks_per_node_max: 8}")
    assert "Requested node configuration is not available" in seen


def test_tensor_parallel_groups_larger_than_a_node_are_refused(trained):
    seen = fails(trained, "nodes=2", "ranks_per_node=1", target="results/fsdp_tp/llama2.done")
    assert "tensor-parallel groups stay inside a node" in seen or "ranks_per_node" in seen


def test_image_missing(trained):
    (trained.path / "containers/train.sif").unlink()
    seen = fails(trained)
    assert "the image containers/train.sif is missing; build it again with" in seen
    named = "site_settings={container: {image: /nowhere/train.sif}}"
    assert "there is no image /nowhere/train.sif; set container.image in the site's file" in fails(trained, named)


def test_apptainer_not_found(trained):
    seen = fails(trained, "site_settings={container: {command: apptainer-9}}")
    assert "there is no apptainer-9 on " in seen
    assert "container.command" in seen


def test_walltime_too_short(trained):
    seen = fails(trained, "recipe={epochs: 1000000}", "site_settings={slurm: {runtime: 1}}")
    assert "TIMEOUT" in seen
    assert "raise slurm.runtime" in seen


def test_polling_goes_on_without_slurmdbd(trained):
    pid = int((cluster.HOME / "run/slurmdbd.ours").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        trained.snakemake("results/ddp/mlp.done", timeout=300)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_scancel_of_one_run_by_hand(learner):
    strategies = "strategies=[single, ddp, fsdp]"
    call = snakemake("all", "--retries=0", config=[strategies, "workloads=[llama2]"])
    driver = learner.start(*call)
    learner.run("scancel", training_job(learner, "ddp/llama2", driver))
    seen = learner.finish(driver, check=False)
    assert seen.returncode != 0
    assert "CANCELLED" in seen.stdout
    table = (learner.path / "results/summary.md").read_text()
    assert "- ddp x llama2: missing" in table
    assert all((learner.path / f"results/{name}/llama2/test.json").exists() for name in ("single", "fsdp"))
    again = learner.snakemake("all", config=[strategies, "workloads=[llama2]"])
    assert "Not complete" not in (learner.path / "results/summary.md").read_text(), again.stdout
