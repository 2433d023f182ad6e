"""Faults of this field, by hand, by what they are about."""

import checkpoint_faults
import context_faults
import expert_faults
import gpu_faults
import library_faults
import measure_faults
import packing_faults
import published_faults
import rank_faults
import script_faults
import server_faults
import shared_faults
import value_faults

MODULES = (
    rank_faults,
    context_faults,
    packing_faults,
    expert_faults,
    published_faults,
    shared_faults,
    checkpoint_faults,
    measure_faults,
    gpu_faults,
    library_faults,
    server_faults,
    script_faults,
    value_faults,
)
FAULTS = [fault for module in MODULES for fault in module.FAULTS]
