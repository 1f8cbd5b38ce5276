"""Fixed pseudo-random choices that define a dataset: they must never change, whatever the version of NumPy.

Only the raw output of the PCG64 bit generator and `SeedSequence` are used, whose streams NumPy keeps for ever
(NEP 19); the methods of `np.random.Generator` come with no such promise.
"""

import numpy as np


def binarise(levels: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
    """One draw of Bernoulli(level / 255) for each pixel; level 0 is never ink and level 255 always."""
    u = _raw(levels.size, seed).reshape(levels.shape) >> np.uint64(11)  # uniform on 0 .. 2^53 - 1
    return (u * np.uint64(255) < levels.astype(np.uint64) << np.uint64(53)).astype(np.uint8)


def permutation(size: int, seed: tuple[int, ...]) -> np.ndarray:
    """A shuffle of 0 .. size - 1."""
    return np.argsort(_raw(size, seed), kind="stable")


def _raw(size: int, seed: tuple[int, ...]) -> np.ndarray:
    return np.random.PCG64(np.random.SeedSequence(seed)).random_raw(size)
