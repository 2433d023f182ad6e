"""The cost of a run: time, memory, bytes sent (measured and expected); a check of the collectives."""
