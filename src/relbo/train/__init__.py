"""Training: loop, data, checkpoints, metrics."""
