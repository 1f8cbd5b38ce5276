"""SIGINT and SIGTERM: the first asks for an end, the second ends at once, even inside a long call."""

import os
import signal
import subprocess
import sys
import time

import pytest

from relbo.train.signals import stop_requests


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(number):
    before = signal.getsignal(number)
    with stop_requests() as asked:
        assert not asked
        os.kill(os.getpid(), number)
        for _ in range(200):
            if asked:
                break
            time.sleep(0.01)
        assert asked.number == number
    assert signal.getsignal(number) is before


BUSY = """
import hashlib
from relbo.train.signals import stop_requests
with stop_requests():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000_000)  # one long call, in which Python runs no handler
"""


def test_the_second_signal_ends_at_once():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    process.stdout.close()
    assert time.monotonic() - begin < 2
