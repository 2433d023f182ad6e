"""benchmarks/published.py: its rows resolve, and their plans are what theory says of the states."""

import published
import pytest

from shardlab.settings.types import Run


@pytest.mark.parametrize("row", published.ROWS, ids=lambda row: f"{row.size}-{row.strategy}-{row.ranks}-{row.gib:g}")
def test_rows_resolve(row):
    run = published.run_of(row)
    assert isinstance(run, Run)
    assert run.world_size == row.ranks
    batch = row.micro_batch * run.mesh.data_size * run.recipe.gradient_accumulation_steps
    assert run.recipe.global_batch_size == batch
    assert run.data.options["sequence_length"] == row.recipe.length * run.mesh.parts("sequence")
    assert row.gib > 0


def test_a_row_is_planned_within_a_percent_of_theory_and_compared():
    """Two bytes per weight, gradient and moment, halved by FSDP, and per rank what it accumulates whole."""
    bf16 = published.KEMPNER._replace(length=64)
    first = published.Row(bf16, "small", "fsdp", 2, 1, gib=1.0)
    rows = [first, first._replace(ranks=4, gib=0.5)]
    plans = published.planned(rows, cores=1)
    for row, plan in zip(rows, plans, strict=True):
        held = plan["tensor_bytes"][0]["largest"]
        expected = 2 * plan["parameters"] / row.ranks
        assert held["weights"] == pytest.approx(expected, rel=0.01)
        assert held["gradients"] == pytest.approx(expected, rel=0.01)
        assert held["optimizer"] == pytest.approx(2 * expected, rel=0.01)
        known = published.known_differences(row, plan)
        more = 4 * plan["parameters"] - plan["tensor_bytes"][0]["at_peak"]["gradients"]
        assert known == {"whole gradients in float32": pytest.approx(more / published.GIB)}
    table = published.table_of(rows, plans)
    assert table["error %"][0] == pytest.approx(100 * (table["planned"][0] / 1.0 - 1))
    found = published.differences(rows, table)
    assert list(found["published"]) == [-0.5]
    assert found["planned"][0] == pytest.approx(table["planned"][1] - table["planned"][0])
