"""SIGINT and SIGTERM: the first asks for an end, the second ends at once, even inside a long call."""

import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest

import relbo
from relbo.models.toy import PoissonProposal, PoissonTarget
from relbo.train.signals import answer, stop_requests


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


class Pressed(PoissonTarget):
    """Somebody presses Ctrl-C while the step is traced, and waits for an answer."""

    def log_joint(self, x, z):
        if not SAID:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(500):
                if SAID:
                    break
                time.sleep(0.01)
        return super().log_joint(x, z)


SAID = []


def test_a_request_while_compiling_is_answered_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("relbo.train.fit.LOGGER.warning", SAID.append)
    pair = relbo.Pair(Pressed(jnp.asarray(2.0)), PoissonProposal(jnp.asarray(0.0)))
    told = []
    monkeypatch.setattr("relbo.train.open_run.OpenRun.begin", lambda run: told.extend(SAID))
    result = relbo.fit(pair, relbo.RLOO(2), jnp.zeros((4, 1)), num_epochs=1, batch_size=2)
    assert told == ["Ctrl-C: training ends as soon as the step is compiled; a second one ends the process at once."]
    assert result.stopped == "interrupted" and int(result.state.step) == 0


def test_answers():
    assert answer(signal.SIGTERM, is_compiled=True, is_saved=True) == (
        "SIGTERM: training ends after the steps under way and is saved; a second one ends the process at once."
    )
