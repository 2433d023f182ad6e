"""Training, independent of the strategy: batches, tasks, optimizer, evaluation, checkpoints, the Engine protocol."""
