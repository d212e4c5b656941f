"""A few kills; `benchmarks/kill.py` kills more commands, and more often."""

import os
import signal

import pytest

from tests.faults.commands import in_a_fork
from tests.faults.kills import Moments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of a fork beside threads
]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_command_ends_as_one_that_was_not_when_it_runs_again(stand, seed):
    outcome = stand.kill(seed)
    assert outcome.was_killed
    assert outcome.fault == "", outcome


def test_a_command_is_killed_at_the_moment_and_not_before(stand):
    last = stand.totals["files"]
    for moment, code in ((1, -signal.SIGKILL), (last, -signal.SIGKILL), (last + 1000, 0)):
        out = stand.out(f"moment-{moment}")
        start = Moments(out, "files", moment).start
        assert in_a_fork(stand.command.begin(stand.place, out), start).code == code
        if moment == 1:
            assert not os.listdir(out), "the first change had been made"


def test_what_differs_is_seen(stand):
    out = stand.out("damaged")
    assert in_a_fork(stand.command.begin(stand.place, out)).code == 0
    assert stand.fault_after_again(out) == ""
    whole = dict(stand.whole)
    try:
        stand.whole[min(whole)] += b"!"
        assert min(whole) in stand.fault_after_again(out)
    finally:
        stand.whole = whole
