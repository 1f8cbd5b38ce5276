"""The Threefry-2x32 hash, written out so that a compiler makes one loop over the counters of it.

The words are those of `jax.extend.random.threefry_2x32`, whose rounds are a loop of their own on a CPU: five passes
over memory, with a launch for each.

Reference:
    Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3".
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


@jax.jit  # traced once for each shape: a guide asks for many keys
def threefry(
    key: UInt32[Array, " 2"], x0: UInt32[Array, "*s"], x1: UInt32[Array, "*s"]
) -> tuple[UInt32[Array, "*s"], UInt32[Array, "*s"]]:
    """Two random words for each counter (x0, x1)."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << jnp.uint32(rotation)) | (x1 >> jnp.uint32(32 - rotation))
            x1 = x0 ^ x1
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1
