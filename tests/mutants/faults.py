"""Faults of this field, by hand."""

import gpu_faults
import of_all
import of_ranks

FAULTS = [*of_ranks.FAULTS, *of_all.FAULTS, *gpu_faults.FAULTS]
