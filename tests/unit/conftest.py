"""Fixtures of the tests of settings (a site without limits, a strategy for one test)."""

import pytest

from shardlab.settings import load
from shardlab.settings.sites import Srun


@pytest.fixture
def site(monkeypatch):
    """A site without limits."""
    original, unlimited = load.site, {"nodes_max": None, "ranks_per_node_max": None, "srun": Srun()}
    monkeypatch.setattr(load, "site", lambda config: original(config).model_copy(update=unlimited))


@pytest.fixture
def strategy(monkeypatch):
    """Add a strategy entry for one test."""

    def add(name, **values):
        entries = load.read_yaml(load.CONFIG / "strategies.yaml") | {name: values}
        original = load.read_yaml
        monkeypatch.setattr(
            load, "read_yaml", lambda path: entries if path.name == "strategies.yaml" else original(path)
        )
        load.strategy.cache_clear()

    yield add
    load.strategy.cache_clear()
