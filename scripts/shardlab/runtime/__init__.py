"""What a strategy builds on: the ranks of a run, devices, the Engine protocol, tasks, batches."""
