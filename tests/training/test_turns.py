import signal
import threading
import time

import pytest
import torch

from sgpmil.training.turns import give_way, resting, take_turns

CPU = torch.device("cpu")


def test_results_come_in_the_order_of_the_jobs():
    def job(number):
        for _ in range(10 - number):
            give_way()
        return number

    jobs = [lambda n=n: job(n) for n in range(7)]
    assert take_turns(jobs, 3, CPU) == list(range(7))
    assert take_turns(jobs, 1, CPU) == list(range(7))


def test_jobs_take_turns_and_only_one_runs():
    running, order = [], []
    both = threading.Barrier(2)

    def job(name):
        with resting():
            both.wait(10)
        for _ in range(4):
            assert not running
            running.append(name)
            order.append(name)
            time.sleep(0.002)
            running.remove(name)
            give_way()

    take_turns([lambda n=n: job(n) for n in "ab"], 2, CPU)
    assert "".join(order) in ("abababab", "babababa")


def test_no_more_run_at_once_than_asked():
    under_way, most = set(), []
    both = threading.Barrier(2)

    def job(number):
        under_way.add(number)
        with resting():
            both.wait(10)
        for _ in range(5):
            give_way()
            most.append(len(under_way))
        under_way.remove(number)

    take_turns([lambda n=n: job(n) for n in range(6)], 2, CPU)
    assert max(most) == 2


def test_each_job_draws_as_it_would_alone():
    def job(seed):
        torch.manual_seed(seed)
        drawn = []
        for _ in range(5):
            give_way()
            drawn.append(torch.rand(2))
            with resting():
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
        with resting():
            assert other_ran.wait(10)

    def runs():
        other_ran.set()

    take_turns([rests, runs], 2, CPU)


def test_an_error_ends_the_others_and_is_raised():
    begun, steps = [], []
    both = threading.Barrier(2)

    def begin(name):
        begun.append(name)
        with resting():
            both.wait(10)

    def fails():
        begin("fails")
        raise ValueError("no")

    def goes_on():
        begin("goes on")
        for _ in range(10**6):
            give_way()
            steps.append(1)
        raise AssertionError("it was not ended")

    with pytest.raises(ValueError, match="no"):
        take_turns([fails, goes_on, goes_on, goes_on], 2, CPU)
    assert begun == ["fails", "goes on"]
    assert len(steps) < 10**6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_asks_to_stop_is_heard(number):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ended = []
    both = threading.Barrier(2)

    def job(signals):
        try:
            with resting():
                both.wait(10)
            if signals:
                signal.raise_signal(number)
            while True:
                give_way()
                time.sleep(0.001)
        finally:
            ended.append(1)

    try:
        with pytest.raises(KeyboardInterrupt):
            take_turns([lambda: job(True), lambda: job(False)], 2, CPU)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(ended) == 2
