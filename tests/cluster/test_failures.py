"""What goes wrong on a cluster: one clear sentence, a status that is not 0, and nothing lost."""

import pytest

import cluster
from login import snakemake, training_job

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def too_long(base, make_copy):
    """A run that needs more than the minute that it asks for, under way."""
    with make_copy("too_long") as learner:
        config = ["recipe={epochs: 1000000}", "site_settings={slurm: {runtime: 1}}"]
        words = snakemake("results/ddp/mlp.done", flags=["--retries=0"], config=config)
        yield learner, learner.start(*words)


@pytest.fixture(autouse=True)
def under_way(too_long):
    """Starts it before the first test."""


def fails(learner, *config, target="results/ddp/mlp.done"):
    """Output of a call that must fail and leave no finished run."""
    done = learner.snakemake(target, flags=["--retries=0"], config=config, check=False)
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


def test_a_site_without_slurm(trained):
    seen = fails(trained, "site=local")
    assert "site local has no `slurm:` section, and this call submits to Slurm" in seen
    assert "SLURM jobid" not in seen


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


def test_polling_goes_on_without_slurmdbd(trained):
    cluster.stop_slurmdbd()
    try:
        trained.snakemake("results/ddp/mlp.done", timeout=300)
    finally:
        cluster.start_slurmdbd()


def test_scancel_of_one_run_by_hand(learner):
    strategies = "strategies=[single, ddp, fsdp]"
    call = snakemake("all", flags=["--retries=0"], config=[strategies, "workloads=[llama2]", "recipe={max_steps: 40}"])
    driver = learner.start(*call)
    learner.run("scancel", training_job(learner, "ddp/llama2", driver))
    seen = learner.finish(driver, check=False)
    assert seen.returncode != 0
    assert "CANCELLED" in seen.stdout
    table = (learner.path / "results/summary.md").read_text()
    assert "- ddp x llama2: missing" in table
    assert all((learner.path / f"results/{name}/llama2/test.json").exists() for name in ("single", "fsdp"))


def test_walltime_too_short(too_long):
    """Last in this file: the job has its minute while the other tests go on."""
    learner, driver = too_long
    seen = learner.finish(driver, check=False).stdout
    assert driver.returncode != 0
    assert "SLURM status is: 'TIMEOUT'" in seen
    assert "ddp x mlp was told to stop (SIGTERM)" in seen
    assert "raise slurm.runtime in the site's file" in seen
    assert not (learner.path / "results/ddp/mlp.done").exists()
    assert (learner.path / "results/ddp/mlp/metrics.jsonl").exists(), "what was measured before stays"
