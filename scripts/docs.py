#!/usr/bin/env python3
"""Write the generated tables of docs/ and README.md."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel

from shardlab.errors import UserError, run_program
from shardlab.files import ROOT, write_text
from shardlab.report.summary import MEMORY_KINDS
from shardlab.settings import (
    config,
    load,
    mesh,
    model_rules,
    recipe,
    resolve,
    run_identity,
    sites,
    types,
    variants,
)

SHOWN_WORKLOADS = ("llama2", "moe")
"""Workloads of the pages' figures: the first one under all of a page's strategies."""
README_LOSSES = ("single", "ddp", "fsdp_tp", "fsdp_cp", "fsdp_ep", "zero3")
"""Strategies of README.md's table, which repeats rows of docs/results.md."""
TWINS = "rounding alone (twins)"
"""Last row of the matrix."""
SITE_GROUPS: dict[str, type[BaseModel]] = {"slurm": sites.Slurm, "srun": sites.Srun, "container": sites.Container}
"""Keys of a site that contain further keys, which stand in the same list."""
LISTS: dict[str, type[BaseModel]] = {
    "config": config.Config,
    "workload": types.Workload,
    "source": types.DataSource,
    "hub": types.HubSource,
    "size": types.Size,
    "recipe": recipe.Recipe,
    "optimizer": recipe.Optimizer,
    "lr_schedule": recipe.Schedule,
    "group": recipe.Group,
    "adapter": recipe.Adapter,
    "strategy": types.Strategy,
    "queue": sites.Queue,
    "billing": sites.Billing,
    "stage": sites.SlurmStage,
    "hardware": sites.Hardware,
}
"""Lists of keys in docs/settings.md."""


def main() -> None:
    """Write the files, or with --check report what is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    parser.add_argument(
        "--summary", type=Path, help="summary.csv of all strategies, for docs/results.md, docs/strategies, README.md"
    )
    args = parser.parse_args()
    for path, text in generated(args.summary).items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if args.check:
            raise UserError(f"{path.relative_to(ROOT)} is not up to date; run: make docs.")
        write_text(path, text)
        print(f"wrote {path.relative_to(ROOT)}")


def generated(summary: Path | None) -> dict[Path, str]:
    """Return path and content of every file with generated parts."""
    files: dict[Path, str] = {}
    settings = ROOT / "docs/settings.md"
    blocks = {name: key_list(kind) for name, kind in LISTS.items()} | {
        "site keys": key_list(sites.Site, SITE_GROUPS),
        "edits": edits_table(),
    }
    files[settings] = fill(settings, blocks)
    own = ROOT / "docs/your-own.md"
    files[own] = fill(own, {"contents": model_rules.listed()})
    page = ROOT / "docs/results.md"
    if summary:
        table = pd.read_csv(summary)
        shown = matrix(table)
        files |= {each: fill(each, {"figures": figures(each, table)}) for each in all_pages()}
    else:
        shown = between(page.read_text(encoding="utf-8"), "matrix")
    files[page] = fill(page, {"matrix": shown})
    readme = ROOT / "README.md"
    files[readme] = fill(readme, {"losses": readme_losses(shown)})
    return files


def readme_losses(shown: str) -> str:
    """Select rows and the default workloads of the matrix for README.md, without the numbers of its footnotes."""
    names = ["strategy", "---", *(f"`{name}`" for name in README_LOSSES), TWINS]
    lines = {line.split("|")[1].strip(): line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("|")}
    defaults = config.Config().workloads
    kept = [0, *(i for i, name in enumerate(lines["strategy"]) if name.strip() in defaults)]
    rows = ["|" + "|".join(lines[name][i] for i in kept) + "|" for name in names if name in lines]
    return "\n".join(re.sub(r"\[\d+\]", "", row) for row in rows)


def figures(page: Path, table: pd.DataFrame) -> str:
    """Format a Markdown table of memory and traffic per rank under a page's strategies, compared with ``single``."""
    named = ["single", *strategies_of(page)]
    cells = {*zip(table.strategy, table.workload, strict=True)}
    all_there = [workload for workload in SHOWN_WORKLOADS if all((name, workload) in cells for name in named)]
    rows = table[table.workload == [*all_there, SHOWN_WORKLOADS[0]][0]].set_index("strategy").loc[named]
    columns = {kind: rows[f"{kind}_bytes"] for kind in MEMORY_KINDS} | {"all tensors": rows.tensor_bytes}
    shown = {"strategy": [f"`{name}`" for name in rows.index], "ranks": rows.world_size.astype(int)}
    shown |= {name: (sizes / 2**20).map("{:.2f}".format) for name, sizes in columns.items() if sizes.any()}
    shown |= {"sent": (rows.bytes_per_step / 2**20).map("{:.2f}".format)}
    return str(pd.DataFrame(shown).to_markdown(index=False, disable_numparse=True))


def all_pages() -> list[Path]:
    """Return the pages of strategies."""
    return [path for path in sorted((ROOT / "docs/strategies").glob("*.md")) if path.name != "README.md"]


def strategies_of(page: Path) -> list[str]:
    """Return the strategies that a page is about."""
    (line,) = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("Strategies: ")]
    return line.split("`")[1::2]


def edits_table() -> str:
    """Format a Markdown table of the keys of which an edit does not train a finished run again."""
    lines = ["| keys of | where it runs | when, and what a call asks for |", "| --- | --- | --- |"]
    for section, classes in run_identity.KEYS.items():
        cells = [" ".join(f"`{key}`" for key in classes[name].split()) for name in ("place", "time")]
        lines.append(f"| {section} | {' | '.join(cells)} |")
    return "\n".join(lines)


def key_list(kind: type[BaseModel], groups: dict[str, type[BaseModel]] | None = None) -> str:
    """Format a Markdown list of a settings class: key, default, meaning; keys of its groups are written group.key."""
    lines = []
    rows = [(name, field) for name, field in kind.model_fields.items() if name not in (groups or {})]
    rows += [
        (f"{group}.{n}", field) for group, part in (groups or {}).items() for n, field in part.model_fields.items()
    ]
    for name, field in rows:
        if field.is_required():
            shown = "required"
        else:
            default: Any = field.get_default(call_default_factory=True)
            shown = "see below" if isinstance(default, BaseModel) else f"`{json.dumps(default)}`"
        lines.append(f"- `{name}` ({shown}): {field.description}")
    return "\n".join(lines)


def matrix(table: pd.DataFrame) -> str:
    """Format a Markdown table of the results: test loss of ``single``, relative difference of the others, or a reason;
    then the largest difference of ``single``'s twins. Variants of workloads are left out.
    """
    table = table[table.workload.map(variants.base) == table.workload]
    config = load.config({"strategies": ["all"], "workloads": list(dict.fromkeys(table.workload))})
    _, left_out = resolve.matrix(config)
    reasons = {cell: general(reason, *cell) for cell, reason in left_out.items()}
    notes = list(dict.fromkeys(reasons.values()))
    cells = {cell: f"[{notes.index(reason) + 1}]" for cell, reason in reasons.items()}
    for row in table.to_dict("records"):
        single = row["strategy"] == "single"
        cells[row["strategy"], row["workload"]] = f"{row['test_loss']:.4f}" if single else f"{row['rel_diff']:.0e}"
    lines = ["| strategy | " + " | ".join(config.workloads) + " |", "| --- |" + " --- |" * len(config.workloads)]
    lines += [f"| `{s}` | " + " | ".join(cells[s, w] for w in config.workloads) + " |" for s in config.strategies]
    noise_floors = table.groupby("workload").noise_floor.max()
    lines.append(f"| {TWINS} | " + " | ".join(f"{noise_floors[w]:.0e}" for w in config.workloads) + " |")
    return "\n".join([*lines, "", *(f"[{number}] {note}  " for number, note in enumerate(notes, 1))])


def general(reason: str, strategy: str, workload: str) -> str:
    """Return why a strategy does not train a workload, in words that hold for all of which it is true."""
    for word, name in (("STRATEGY", strategy), ("NAME", variants.base(workload))):
        if name not in mesh.AXES:
            reason = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, reason)
    return reason


def fill(path: Path, blocks: dict[str, str]) -> str:
    """Return the file with each block put between ``<!-- name -->`` and ``<!-- end name -->``."""
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        if start not in text or end not in text:
            raise UserError(f"{path}: the markers {start.strip()} and {end} are missing; add them.")
        before, rest = text.split(start, 1)
        text = before + start + block + "\n" + end + rest.split(end, 1)[1]
    return text


def between(text: str, name: str) -> str:
    """Return what is between a text's markers of that name."""
    return text.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- end {name} -->")[0]


if __name__ == "__main__":
    run_program(main)
