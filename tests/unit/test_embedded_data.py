"""The embedded data is the same wherever the lock file's packages are installed: fingerprints.json has its digests.

    APPROVE=1 pytest tests/unit/test_embedded_data.py

writes those of the present readers and packages.
"""

import json
import os
from pathlib import Path

import pytest

from shardlab import data as data_sets
from shardlab.data import store
from shardlab.data.encoders import encode
from shardlab.settings import load, resolve

PINNED = Path(__file__).with_name("fingerprints.json")
WORKLOADS = ("mlp", "mnist", "xsum", "llama2")
"""One for each data set of the default matrix (vit shares mnist's)."""


@pytest.mark.parametrize("workload", WORKLOADS)
def test_fingerprint(workload, tmp_path):
    data = resolve.run(load.config({}), "single", workload).data
    found = store.write(tmp_path, data, *encode(data, data_sets.read(data, tmp_path)))["fingerprint"]
    pinned = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    if os.environ.get("APPROVE"):
        PINNED.write_text(json.dumps(pinned | {data.name: found}, indent=2, sort_keys=True) + "\n")
    else:
        assert found == pinned[data.name]


def test_no_sample_is_in_two_splits():
    cut = data_sets.split(list(range(30)), seed=1)
    assert {name: len(samples) for name, samples in cut.items()} == {"train": 24, "validation": 3, "test": 3}
    assert sorted(sample for samples in cut.values() for sample in samples) == list(range(30))
