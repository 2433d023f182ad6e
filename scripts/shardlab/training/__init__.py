"""One training, whatever the strategy: batches, tasks, optimizer, evaluation, checkpoints, the engine's contract."""
