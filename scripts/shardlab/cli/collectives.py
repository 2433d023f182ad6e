"""Measure the collectives over all ranks of a site: correctness, latency and bandwidths by message size."""

import csv
import io
from pathlib import Path

from shardlab.cli import program
from shardlab.errors import UserError
from shardlab.files import write_text
from shardlab.measure.collectives import COLLECTIVES, measure
from shardlab.runtime import distributed
from shardlab.settings.types import read_ranks

SIZES = [1024 * 4**power for power in range(8)]
"""Of messages, in bytes: 1 KiB to 16 MiB."""
REPEATS = 20
"""Of each, of which the median is reported."""


@program
def main(settings: Path, output: Path) -> None:
    """Measure every collective at every size; rank 0 writes one row each."""
    run = read_ranks(settings)
    if run.world_size < 2:
        raise UserError(f"{settings} has one rank; set nodes or ranks_per_node to measure collectives.")
    distributed.start(run.site)
    world = distributed.world(run)
    rows = []
    for name in COLLECTIVES:
        for size in SIZES:
            rows.append({"site": run.site_name, "nodes": run.nodes} | measure(world, name, size, REPEATS))
            if world.is_rank0:
                row = rows[-1]
                print(f"{name:<15}{row['bytes']:>12} bytes {row['microseconds']:>12.1f} us", flush=True)
    if wrong := [str(row["collective"]) for row in rows if row["wrong_ranks"]]:
        names = ", ".join(dict.fromkeys(wrong))
        raise UserError(f"wrong numbers from {names}; check NCCL's environment variables in the site's file.")
    if world.is_rank0:
        text = io.StringIO()
        table = csv.DictWriter(text, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(output, text.getvalue())
    distributed.finish()
