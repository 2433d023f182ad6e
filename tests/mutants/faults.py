"""Faults of this field, by hand, by what they are about."""

import context_faults
import expert_faults
import library_faults
import published_faults
import rank_faults
import shared_faults

MODULES = (
    rank_faults,
    context_faults,
    expert_faults,
    published_faults,
    shared_faults,
    library_faults,
)
FAULTS = [fault for module in MODULES for fault in module.FAULTS]
