"""A page for each site, from its file and from the lines that start a run there."""

import re

from shardlab.files import ROOT
from shardlab.settings import load

APPROVED = ROOT / "tests/unit/approved"
"""Commands that are submitted and started at each site, as verified by a test."""
KEY = re.compile(r"( *)([A-Za-z_]+):(?: (.*))?$")


def pages() -> dict[str, str]:
    """Return {name: page} of every site with approved lines."""
    return {path.stem: page(path.stem) for path in sorted(APPROVED.glob("*.txt"))}


def page(name: str) -> str:
    source = (load.CONFIG / "sites" / f"{name}.yaml").read_text(encoding="utf-8")
    about, rows = _read(source)
    title, _, rest = about.partition(":")
    lines = (APPROVED / f"{name}.txt").read_text(encoding="utf-8").rstrip()
    profile = "slurm" if "\nslurm:" in source else "workflow/profiles/local"
    call = f"snakemake --profile {profile} --config site={name} --"
    text = [f"# {title.strip()} (`site={name}`)", "", f"{rest.strip()}\n" if rest else ""]
    text += ["```console", f"{call} preflight   # problems here, and how to fix them", f"{call} all", "```", ""]
    text += [f"Keys of [config/sites/{name}.yaml](../../config/sites/{name}.yaml):", ""]
    text += ["| key | value | why |", "| --- | --- | --- |", *rows, ""]
    text += ["Commands that submit and start a run (checked by `tests/unit/test_sites.py`):", ""]
    text += [
        "```text",
        lines,
        "```",
        "",
        "Time limits and preemption: [fault tolerance](../results.md); `preflight` queries",
    ]
    text += ["the cluster's own Slurm for them. All keys: [settings](../settings.md#sitesnameyaml)."]
    return "\n".join(text).replace("\n\n\n", "\n\n") + "\n"


def _read(source: str) -> tuple[str, list[str]]:
    """Return (the comment at the top of a site's file, a table row for each key with its value and comment)."""
    about: list[str] = []
    rows: list[str] = []
    comment: list[str] = []
    group = ""
    for line in source.splitlines()[1:]:
        if line.strip().startswith("#"):
            comment.append(line.strip("# "))
        elif not line.strip():
            about, comment = about or comment, [] if not about else comment
        elif (found := KEY.match(line)) is None:
            comment = []
        elif found[3] is None:
            group, comment = found[2], []
        else:
            name = f"{group}.{found[2]}" if found[1] else found[2]
            rows.append(f"| `{name}` | `{found[3]}` | {' '.join(comment)} |".replace("||", "\\|\\|"))
            comment = []
    return " ".join(about), rows
