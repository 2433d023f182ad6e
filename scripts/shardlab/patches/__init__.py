"""Changes of other projects, each says why, and goes when that is no longer so."""

REVIEWED = {
    "deepspeed": "0.19.8",
    "snakemake": "9.27.1",
    "snakemake-executor-plugin-slurm": "2.8.0",
    "torch": "2.13.0",
    "transformers": "5.23.0",
}
"""The version of each project that its patches were reviewed for: where another is pinned, review them again."""
