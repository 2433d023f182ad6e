"""Former configuration keys name their successors."""

from shardlab.schema import RENAMED
from shardlab.settings import config, recipe, sites, types


def test_a_former_key_is_no_key_and_its_new_name_is_one():
    kinds = [config.Config, recipe.Recipe, sites.Site, sites.ContainerExec, types.StrategyOptions, types.Workload]
    known = {key for kind in kinds for key in kind.model_fields}
    for former, names in RENAMED.items():
        assert former not in known
        assert known.issuperset(names), former
