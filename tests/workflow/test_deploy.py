"""The workflow as a module of another one, by github(...); and what others take from it: weights, a report."""

import pytest
import yaml

from helpers.common import Tree
from helpers.documents import commit

SNAKEFILE = """
configfile: "config.yaml"


module shardlab:
    snakefile:
        github("someone/shardlab", path="Snakefile", tag="v1")
    config:
        config


use rule * from shardlab
"""


@pytest.mark.long
def test_a_module_runs_with_its_own_programs_and_the_users_configuration(make_tree, tmp_path):
    """In a folder with two files; git finds someone/shardlab in a copy of this project."""
    origin, user = commit(make_tree(tmp_path / "origin")), Tree(tmp_path / "user")
    user.path.mkdir()
    (user.path / "Snakefile").write_text(SNAKEFILE)
    config = {"strategies": ["single", "ddp"], "workloads": ["llama2"], "noise_floor_runs": 0}
    (user.path / "config.yaml").write_text(yaml.safe_dump(config | {"recipe": {"max_steps": 3}}))
    instead = {"KEY": f"url.file://{origin}.insteadOf", "VALUE": "https://github.com/someone/shardlab"}
    environment = {f"GIT_CONFIG_{key}_0": value for key, value in instead.items()} | {"GIT_CONFIG_COUNT": "1"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    user.run("snakemake", "--cores=2", "all", "results/export/ddp/llama2", **environment)
    user.run("snakemake", "--cores=2", "--report=report.html", "all", **environment)
    assert (user.path / "results/summary.md").read_text().startswith("# Summary\n\n**The other run is equal")
    assert not (user.path / "scripts").exists()
    (copy,) = (user.path / ".snakemake/shardlab").iterdir()
    assert user.json("results/ddp/llama2/train.json")["git_commit"] == copy.name
    assert user.json("results/ddp/llama2/run.json")["recipe"]["max_steps"] == 3
    log = (user.path / "results/logs/export/ddp/llama2.log").read_text()
    assert f"transformers opens it; test loss {user.json('results/ddp/llama2/test.json')['loss']:.6f}"[:-2] in log
    report = (user.path / "report.html").read_text()
    assert all(words in report for words in ("figures of all runs", "report of all runs", "loss.llama2"))
