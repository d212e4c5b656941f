import signal
import subprocess
import sys

import pytest

from sgpmil.slides.extraction.tile_workers import without_interrupts

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="this system has no signal masks"
)
CHILD = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


def started():
    found = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    return found.stdout.strip()


def test_processes_that_are_started_meanwhile_do_not_hear_of_an_interrupt():
    with without_interrupts():
        assert started() == "True"
    assert started() == "False"


def interrupted_within(reached):
    with without_interrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)


def test_an_interrupt_is_held_back_and_not_lost():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_within(reached)
    assert reached == [True]
