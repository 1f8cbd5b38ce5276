"""A fuzzer: `python -m tests.fuzz --minutes 5 --seed 0`, from the root of the repository."""
