"""What can go wrong while training."""


class TrainingError(RuntimeError):
    """Training cannot go on; the last checkpoint is whole."""
