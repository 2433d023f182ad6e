"""One training on one rank: its loop and steps, checkpoints, metrics, evaluation, captures for a diagnosis."""
