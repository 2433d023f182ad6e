"""What preflight asks on the login node: start, driver, folder; with programs that print real text."""

import pytest
import snakemake_executor_plugin_slurm  # noqa: F401 (its import starts `which`)

from helpers.common import program
from shardlab.runs import project_folder, slurm, slurm_limits
from shardlab.runs.slurm_request import Request
from shardlab.settings.sites import Site


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Function that puts programs on the PATH, of which nothing else is: name, {part of the arguments: output}."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("USER", "learner")
    monkeypatch.setenv("LOGNAME", "learner")

    def make(name, answers, status=0):
        cases = "".join(f"  *'{part}'*) /bin/cat <<'END'\n{text}\nEND\n  ;;\n" for part, text in answers.items())
        program(folder / name, f'case "$*" in\n{cases}esac\nexit {status}')

    return make


@pytest.mark.parametrize(
    ("text", "said", "wrong"),
    [
        ("allocation failure: Invalid account or account/partition combination specified", None, "refuses ddp x mlp"),
        ("allocation failure: Required node not available (down, drained or reserved)", "start: unknown for ddp", None),
    ],
)
def test_a_job_that_slurm_would_refuse(programs, text, said, wrong):
    programs("sbatch", {"--test-only": text}, status=1)
    site = Site(cpus_per_rank=2, slurm={"gpus": "gres"})
    answer = slurm_limits.trial([Request("ddp x mlp", slurm.resources(site, "train", 1, 4))])
    reason = text.removeprefix("allocation failure: ")
    for sentences, part in ((answer.said, said), (answer.wrong, wrong)):
        assert len(sentences) == (part is not None)
        assert all(part in sentence and reason in sentence for sentence in sentences)


QUOTA = """Disk quotas for user learner (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      nas:/home 9437184* 9437184 10485760  6days   70000  100000  100000
"""


def test_a_folder_that_is_too_small(programs, monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"nas:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(project_folder, "MOUNTS", mounts)
    programs("quota", {"-w": QUOTA.replace("9437184*", "10000000*")})
    _, wrong = project_folder.look(tmp_path, 2**30)
    assert wrong == [f"your quota at {tmp_path} leaves less than 1.0 GiB; free some, or use another folder"]
