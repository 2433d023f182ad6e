"""Faults of this field, by hand, by what they are about."""

import checkpoint_faults
import gpu_faults
import measure_faults
import of_all
import of_ranks

MODULES = (of_ranks, of_all, checkpoint_faults, measure_faults, gpu_faults)
FAULTS = [fault for module in MODULES for fault in module.FAULTS]
