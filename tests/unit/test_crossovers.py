"""benchmarks/crossovers.py: the bytes that it computes for large models are those of plans."""

import crossovers
import pytest

from shardlab.plan.simulate import simulate


@pytest.mark.parametrize(("name", "strategy"), [("context", "cp"), ("experts", "fsdp_ep@ep=8")])
def test_expected_bytes_are_those_of_a_plan(name, strategy):
    run = crossovers.large_run(crossovers.QUESTIONS[name]._replace(size="small"), strategy, 128)
    (estimate,) = simulate([(run, None)])
    assert crossovers.bytes_of(run) == pytest.approx(sum(entry["bytes"] for entry in estimate["traffic"]), rel=1e-3)
