"""Jobs that take turns, so that their work on a GPU is done side by side.

The steps of one model leave a GPU half idle, and to launch them takes a tenth of the time they run.
Several models can be trained at once, then, each on a stream of its own. Each has a thread, but
only one thread runs at a time, from one step to the next: nothing here, in torch or in Lightning
has to be safe for threads, and no recording is disturbed. Each has random numbers of its own, and
computes what it would compute alone.
"""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, TypeVar

import torch

from sgpmil.gpu.recording import RandomNumbers, own_stream

__all__ = ["give_way", "resting", "take_turns"]

T = TypeVar("T")

_here = threading.local()

_PATIENCE = 0.2
"""Seconds after which the thread that waits for jobs looks for signals."""


def give_way() -> None:
    """Let the other jobs have a turn each; nothing happens where there are none."""
    worker: _Worker | None = getattr(_here, "worker", None)
    if worker is not None:
        worker.give_way()


@contextmanager
def resting() -> Iterator[None]:
    """Let other jobs run while this one waits for a GPU or a disk.

    The block must not draw random numbers, nor change anything that jobs share.
    """
    worker: _Worker | None = getattr(_here, "worker", None)
    if worker is None:
        yield
        return
    worker.leave()
    try:
        yield
    finally:
        worker.enter()


def take_turns(
    jobs: Sequence[Callable[[], T]],
    at_once: int,
    device: torch.device,
    on_stop: Callable[[], None] = lambda: None,
) -> list[T]:
    """Do jobs, several of them at once, and return their results.

    Where one fails the others are ended at their next step, and its error is raised. The caller's
    random numbers are left as they were.

    Args:
        jobs: The jobs. They are begun in this order.
        at_once: How many at most.
        device: Where they compute.
        on_stop: Called when jobs that were begun are to end.

    Raises:
        KeyboardInterrupt: The user, or the system, asked to stop.
    """
    before = RandomNumbers(device, shared=True)
    if at_once <= 1 or len(jobs) <= 1:
        RandomNumbers(device).take_up()
        try:
            return [job() for job in jobs]
        finally:
            before.take_up()
    queue = _Queue(jobs)
    workers = [_Worker(number, queue, device) for number in range(min(at_once, len(jobs)))]
    with _termination_interrupts():
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.wait()
        except BaseException:  # Ctrl-C, above all
            with _deaf():
                on_stop()
                # Whatever a job is writing is written, and nothing is begun.
                queue.is_stopped = True
                for worker in workers:
                    worker.wait()
            raise
        finally:
            before.take_up()
    if queue.errors:
        raise queue.errors[min(queue.errors)]
    return [queue.results[number] for number in range(len(jobs))]


class _Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """Ends a job because another failed, or the user asked."""


class _Turn:
    """A lock that is given to those who wait in the order they came."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def take(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = self._queue_up()
        mine.acquire()

    def give(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False

    def pass_on(self) -> None:
        """Give and take in one: who gives is in the queue before another can give in his turn."""
        with self._guard:
            mine = self._queue_up()
            self._waiting.popleft().release()
        mine.acquire()

    def _queue_up(self) -> threading.Lock:
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)
        return mine


class _Queue:
    """Jobs, whose turn it is, and what came of them."""

    def __init__(self, jobs: Sequence[Callable[[], Any]]) -> None:
        self.turn = _Turn()
        self.is_stopped = False
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self._jobs = list(jobs)
        self._begun = 0

    def do_next(self) -> bool:
        """Do a job; say whether there was one."""
        if self.is_stopped or self._begun == len(self._jobs):
            return False
        number = self._begun
        self._begun += 1
        try:
            self.results[number] = self._jobs[number]()
        except _Stopped:
            return False
        except BaseException as error:  # noqa: BLE001 (raised again by the thread that waits)
            self.fail(number, error)
            return False
        return True

    def fail(self, number: int, error: BaseException) -> None:
        """Remember what a job failed of, and end the others."""
        self.errors[number] = error
        self.is_stopped = True


class _Worker:
    """A thread that does jobs one after another, when it is its turn."""

    def __init__(self, number: int, queue: _Queue, device: torch.device) -> None:
        self._number = number
        self._queue = queue
        self._device = device
        self._random = RandomNumbers(device)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._is_done = threading.Event()

    def start(self) -> None:
        """Begin with the first job."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has none left, if it was started.

        Not by joining the thread: one that is interrupted takes it for ended.
        """
        while self._thread.ident is not None and not self._is_done.wait(_PATIENCE):
            pass  # a signal that another thread was given is looked at between two waits

    def _work(self) -> None:
        _here.worker = self
        self._queue.turn.take()
        try:
            self._random.take_up()
            with self._stream():
                while self._queue.do_next():
                    pass
        except BaseException as error:  # noqa: BLE001 (raised again by the thread that waits)
            self._queue.fail(-1, error)
        finally:
            self._queue.turn.give()
            self._is_done.set()

    def enter(self) -> None:
        """Wait for a turn."""
        self._queue.turn.take()
        self._random.take_up()

    def leave(self) -> None:
        """Give up the turn."""
        self._random.put_aside()
        self._queue.turn.give()

    def give_way(self) -> None:
        """Let others have a turn, and end if the jobs are to."""
        if self._queue.turn.is_awaited:
            self._random.put_aside()
            self._queue.turn.pass_on()
            self._random.take_up()
        if self._queue.is_stopped:
            raise _Stopped

    def _stream(self) -> AbstractContextManager[Any]:
        if self._device.type != "cuda":
            return nullcontext()
        if self._device.index is not None:
            torch.cuda.set_device(self._device)
        return torch.cuda.stream(own_stream(self._device, "turns", self._number, priority=-1))


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Treat a request to terminate as Ctrl-C, as Lightning does where it trains in this thread."""
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        raise KeyboardInterrupt

    with _handled_by(interrupt, signal.SIGTERM):
        yield


@contextmanager
def _deaf() -> Iterator[None]:
    """Do not hear further requests to stop while the block ends what the first one asked to end."""
    with _handled_by(signal.SIG_IGN, signal.SIGINT), _handled_by(signal.SIG_IGN, signal.SIGTERM):
        yield


@contextmanager
def _handled_by(handler: Any, number: signal.Signals) -> Iterator[None]:
    before = signal.getsignal(number)
    # Only the main thread may; and what was not set from Python could not be set again.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
