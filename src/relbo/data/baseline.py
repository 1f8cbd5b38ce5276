"""The likelihood of independent pixels: what any model has to beat, and a check that a loader reads the right bits."""

import numpy as np

from relbo.data.dataset import SPLITS, Dataset


def independent_nats(dataset: Dataset) -> dict[str, float]:
    r"""Negative log-likelihood per row of each split, in nats, under independent Bernoulli pixels.

        -sum_d [xbar_d log p_d + (1 - xbar_d) log(1 - p_d)],     p_d = (n xbar_d^train + 1) / (n + 2)

    xbar is the split's mean; n the number of training rows. A gray training split counts in expectation over its
    binarisations.

    Example:
        >>> round(relbo.data.independent_nats(relbo.data.load("digits"))["test"], 1)
        25.2
    """
    n = len(dataset.train)
    p = (n * dataset.mean() + 1) / (n + 2)

    def nats(split: str) -> float:
        mean = dataset.mean() if split == "train" else dataset.column_sums(split) / len(dataset.split(split))
        return float(-np.sum(mean * np.log(p) + (1 - mean) * np.log1p(-p)))

    return {split: nats(split) for split in SPLITS}
