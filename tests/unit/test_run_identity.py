"""What a run is known by: each key of the configuration, and whether a second call trains a finished run again."""

import pytest

from helpers.common import tiny_run
from helpers.keys import CHANGES
from shardlab.settings import load, resolve, run_identity
from shardlab.settings.config import Config
from shardlab.settings.recipe import Recipe
from shardlab.settings.run_identity import KEYS
from shardlab.settings.sites import Site
from shardlab.settings.types import Strategy, Workload

SECTIONS = {"config": Config, "recipe": Recipe, "site": Site, "strategy": Strategy, "workload": Workload}


def resolved(strategy="fsdp", edited=None, workload=None, **values):
    """A run of a configuration, with an entry of config/strategies.yaml, or a file in config/workloads, edited."""
    config = load.config({"site": "test", "ranks_per_node": 2} | values)
    entry, model = load.strategy(strategy).model_dump(exclude_unset=True), load.workload("moe")
    model = Workload.model_validate(model.model_dump(exclude_unset=True) | (workload or {}))
    return resolve.run(config, strategy, "moe", strategy=Strategy(**entry | (edited or {})), workload=model)


def edits(section, key):
    """A run before and after an edit of that key."""
    change = CHANGES[section][key]
    if section == "strategy":
        strategy, change = change
        return resolved(strategy), resolved(strategy, change)
    after = {"config": {key: change}, "recipe": {"recipe": {key: change}}, "site": {"site_settings": {key: change}}}
    before = {"site": "local"} if key == "site" else {}
    return resolved(**before), resolved(**after.get(section, {"workload": {key: change}}))


def test_every_key_is_edited():
    for section, kind in SECTIONS.items():
        missing = kind.model_fields.keys() ^ CHANGES[section].keys()
        assert not missing, f"tests/helpers/keys.py and {section} differ in {missing}"
        assert kind.model_fields.keys() >= {*" ".join(KEYS[section].values()).split()}


@pytest.mark.parametrize(("section", "key"), [(section, key) for section in CHANGES for key in CHANGES[section]])
def test_an_edit_trains_a_finished_run_again_if_the_key_determines_numbers(section, key):
    before, after = (run_identity.identity_of(run, "").run for run in edits(section, key))
    assert (before != after) == run_identity.trains_again(section, key)


def test_a_run_s_numbers_do_not_depend_on_its_place():
    run = tiny_run("llama2", "zero1")
    numbers = run_identity.identity_of(run, "").numbers
    on_gpus = run.model_copy(update={"site": run.site.model_copy(update={"device": "cuda"})})
    for same in (tiny_run("llama2", "zero1", 4), run.model_copy(update={"nodes": 2}), on_gpus):
        assert run_identity.identity_of(same, "").numbers == numbers
        assert run_identity.identity_of(same, "").run != run_identity.identity_of(run, "").run
    others = [run.model_copy(update={key: value}) for key, value in (("seed", 7), ("sources", {}), ("strategy", "x"))]
    assert len({numbers, *(run_identity.identity_of(other, "").numbers for other in others)}) == 4
