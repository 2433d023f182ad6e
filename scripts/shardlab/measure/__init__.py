"""The cost of a run: time, memory, bytes sent (measured and expected), and benchmarks of the collectives."""
