"""Faults of this field, by hand."""

import of_all
import of_ranks

FAULTS = [*of_ranks.FAULTS, *of_all.FAULTS]
