"""Starts processes that have several devices, or that are one run together, and waits for what they print."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax

LIMIT = 240.0
"""Seconds after which processes that have not ended are killed."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def start(words, log):
    """A Python process whose output goes to a file."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[1])}
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, *words], stdout=file, stderr=subprocess.STDOUT, env=environment)


def wait(processes, limit=LIMIT):
    """Exit codes; all are killed if one of them has not ended in time."""
    try:
        return [process.wait(limit) for process in processes]
    finally:
        for process in processes:
            process.kill()


def answers(folder, case, *, num_processes=1, num_devices=1, **options):
    """What each process prints as its last line of JSON, for a case of `tests.many_devices`."""
    port = free_port()
    logs = [folder / f"{case}-{i}-of-{num_processes}.log" for i in range(num_processes)]
    settings = {"num_processes": num_processes, "num_devices": num_devices, "port": port, **options}
    settings["cache"] = jax.config.jax_compilation_cache_dir
    running = [
        start(["-m", "tests.many_devices", case, json.dumps({**settings, "process_id": i})], log)
        for i, log in enumerate(logs)
    ]
    codes = wait(running)
    texts = [log.read_text() for log in logs]
    assert codes == [0] * num_processes, "\n".join(texts)
    return [json.loads(text.strip().splitlines()[-1]) for text in texts]
