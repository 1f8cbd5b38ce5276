"""Keys for the sites of a program, without the launches that splitting costs."""

from typing import Any

from numpyro.handlers import seed

from relbo.streams import split


class Seeded(seed):
    """NumPyro's `seed` handler with the same keys, split by a hash that is written out.

    On a CPU every `jax.random.split` is a loop of its own with some thirty launches, and a run of a guide has one for
    each site; in a small program that was most of a step.

    Args:
        fn: the program.
        key: a typed key.
    """

    rng_key: Any

    def process_message(self, msg: Any) -> None:
        """Gives a site that is still to be drawn the next key."""
        if msg["type"] not in ("sample", "prng_key", "plate", "control_flow"):
            return
        if msg["kwargs"]["rng_key"] is None and msg["value"] is None:
            self.rng_key, msg["kwargs"]["rng_key"] = split(self.rng_key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program from the first key on, however often it is called."""
        key = self.rng_key
        try:
            return super(seed, self).__call__(*args, **kwargs)
        finally:
            self.rng_key = key
