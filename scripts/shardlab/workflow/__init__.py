"""What the rules need to know of a call of Snakemake. What Snakemake has is passed in; nothing happens at import."""
