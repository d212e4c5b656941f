import os
import signal
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
import torch

from sgpmil.gpu.recording import RandomNumbers
from sgpmil.training.fabric import termination_interrupts
from sgpmil.training.turns import _Turn, release_turn, take_turns, yield_turn
from tests.waiting import HANGS_S

CPU = torch.device("cpu")


def test_results_come_in_the_order_of_the_jobs():
    def job(number):
        for _ in range(10 - number):
            yield_turn()
        return number

    jobs = [lambda n=n: job(n) for n in range(7)]
    assert take_turns(jobs, 3, CPU) == list(range(7))
    assert take_turns(jobs, 1, CPU) == list(range(7))


@pytest.mark.parametrize("names", ["ab", "abc", "abcde"])
def test_only_one_runs_and_turns_are_taken_in_the_order_of_waiting(names):
    arrived, running, order = set(), [], []

    def job(name):
        arrived.add(name)
        while len(arrived) < len(names):  # a thread may be slow to start
            yield_turn()
            time.sleep(0.001)
        for _ in range(6):
            assert not running
            running.append(name)
            order.append(name)
            time.sleep(0.001)  # another that ran would be seen
            running.remove(name)
            yield_turn()

    take_turns([lambda n=n: job(n) for n in names], len(names), CPU)
    assert order == 6 * order[: len(names)]
    assert set(order[: len(names)]) == set(names)


def test_who_passes_a_turn_on_is_queueing_when_the_next_has_it():
    turn, seen, has_seen = _Turn(), [], threading.Event()

    class Queue(deque):
        def popleft(self):
            released = super().popleft()
            return SimpleNamespace(release=lambda: (released.release(), has_seen.wait(HANGS_S)))

    def other():
        turn.take()
        seen.append(turn.is_awaited)
        has_seen.set()
        turn.give()

    turn._waiting = Queue()
    turn.take()
    thread = threading.Thread(target=other)
    thread.start()
    while not turn.is_awaited:
        time.sleep(0.001)
    turn.pass_on()
    thread.join()
    assert seen == [True]


def test_no_more_run_at_once_than_asked():
    under_way, most = set(), []
    both = threading.Barrier(2)

    def job(number):
        under_way.add(number)
        with release_turn():
            both.wait(HANGS_S)
        for _ in range(5):
            yield_turn()
            most.append(len(under_way))
        under_way.remove(number)

    take_turns([lambda n=n: job(n) for n in range(6)], 2, CPU)
    assert max(most) == 2


def test_each_job_draws_as_it_would_alone():
    def job(seed):
        torch.manual_seed(seed)
        drawn = []
        for _ in range(5):
            yield_turn()
            drawn.append(torch.rand(2))
            with release_turn():
                time.sleep(0.001)
        return torch.cat(drawn)

    jobs = [lambda n=n: job(n) for n in range(4)]
    alone = [job() for job in jobs]
    torch.manual_seed(17)
    together = take_turns(jobs, 3, CPU)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    after = torch.rand(3)
    torch.manual_seed(17)
    assert torch.equal(torch.rand(3), after)  # those of the caller are where they were


def test_others_run_while_one_rests():
    other_ran = threading.Event()

    def rests():
        with release_turn():
            assert other_ran.wait(HANGS_S)

    def runs():
        other_ran.set()

    take_turns([rests, runs], 2, CPU)


def test_an_error_ends_the_others_and_is_raised():
    begun, steps = [], []
    both = threading.Barrier(2)

    def begin(name):
        begun.append(name)
        with release_turn():
            both.wait(HANGS_S)

    def fails():
        begin("fails")
        raise ValueError("no")

    def goes_on():
        begin("goes on")
        for _ in range(10**6):
            yield_turn()
            steps.append(1)
        raise AssertionError("it was not ended")

    with pytest.raises(ValueError, match="no"):
        take_turns([fails, goes_on, goes_on, goes_on], 2, CPU)
    assert begun == ["fails", "goes on"]
    assert len(steps) < 10**6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_asks_to_stop_is_heard(number):
    ended = []
    both = threading.Barrier(2)

    def job(signals):
        try:
            with release_turn():
                both.wait(HANGS_S)
            if signals:
                signal.raise_signal(number)
            while True:
                yield_turn()
                time.sleep(0.001)
        finally:
            ended.append(1)

    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        take_turns([lambda: job(True), lambda: job(False)], 2, CPU)
    assert len(ended) == 2


def test_what_is_being_written_is_finished_before_it_stops():
    ended, told = [], []
    is_writing, has_stopped, has_asked_again = (threading.Event() for _ in range(3))

    def writes():
        with release_turn():
            is_writing.set()
            has_asked_again.wait(HANGS_S)
        ended.append("written")

    def asks():
        with release_turn():
            is_writing.wait(HANGS_S)
            os.kill(os.getpid(), signal.SIGINT)
            has_stopped.wait(HANGS_S)
            os.kill(os.getpid(), signal.SIGINT)  # impatient
            has_asked_again.set()
        end = time.monotonic() + HANGS_S
        while time.monotonic() < end:  # the thread that waits stops all when it has heard
            yield_turn()
            time.sleep(0.001)
        ended.append("went on")

    def on_stop():
        told.append(1)
        has_stopped.set()

    with pytest.raises(KeyboardInterrupt):
        take_turns([writes, asks], 2, CPU, on_stop=on_stop)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ended == ["written"]
    assert told == [1]


def test_a_handler_of_the_users_own_is_called():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))

    def job():
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            yield_turn()
            time.sleep(0.001)

    try:
        with pytest.raises(KeyboardInterrupt), termination_interrupts():
            take_turns([job, lambda: None], 2, CPU)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("name", ["take_up", "put_aside"])
def test_a_turn_that_cannot_be_taken_or_given_ends_in_an_error(name, monkeypatch):
    calls = []

    def broken(self):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("no random numbers")

    monkeypatch.setattr(RandomNumbers, name, broken)

    def job():
        for _ in range(20):
            with release_turn():
                time.sleep(0.001)

    with pytest.raises(OSError, match="no random numbers"):
        take_turns([job, job], 2, CPU)


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_callers_random_numbers_are_left_alone(at_once):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    def job():
        torch.manual_seed(9)
        return torch.rand(1)

    take_turns([job, job], at_once, CPU)
    assert torch.equal(torch.rand(2), expected)
