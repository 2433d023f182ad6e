#!/usr/bin/env python3
"""Draw the pictures of docs/strategies from finished runs: what each rank holds and sends in a step.

Each strategy's run is that of ``llama2``, or of ``moe`` for experts. Example:

    snakemake --profile workflow/profiles/local --config \
      'strategies=[single,ddp,zero3,fsdp,hsdp,tp,tp_sp,pp,mp_ranks,cp,fsdp_ep,fsdp_tp]' 'workloads=[llama2,moe]' -- all
    python docs/techniques.py
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from shardlab.errors import run_program
from shardlab.files import write_text
from shardlab.records.reports import TrainReport
from shardlab.records.timeline import Timeline
from shardlab.report.technique_picture import picture

STRATEGIES = ("ddp", "zero3", "fsdp", "hsdp", "tp", "tp_sp", "pp", "mp_ranks", "cp", "fsdp_ep", "fsdp_tp")
OF_EXPERTS = ("fsdp_ep",)


def main() -> None:
    """Write a file per strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the runs")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "strategies", help="folder to write")
    args = parser.parse_args()
    for strategy in STRATEGIES:
        workload = "moe" if strategy in OF_EXPERTS else "llama2"
        run, single = (args.results / name / workload for name in (strategy, "single"))
        timeline = run / "timeline.json"
        drawn = picture(
            TrainReport.read(run / "train.json", "train it"),
            TrainReport.read(single / "train.json", "train it"),
            Timeline.read(timeline, "train it again") if timeline.exists() else None,
        )
        write_text(args.output / f"{strategy}.svg", drawn)


if __name__ == "__main__":
    run_program(main)
