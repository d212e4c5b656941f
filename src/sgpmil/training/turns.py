"""Threads that take turns, so that a GPU computes the folds of a cross-validation side by side.

The steps of one model leave a GPU half idle, and launching them takes a tenth of the time they run.
So several models are trained at once, each on a stream of its own. Each has a thread, but only one
thread runs at a time, from one step to the next: nothing here or in torch has to be safe for
threads, and no recording is disturbed. Each has random numbers of its own, and computes what it
would compute alone. One process a fold, measured on an NVIDIA H200, takes 15 to 39 % longer than
threads even without the time to start the processes.
"""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from sgpmil.gpu.recording import RandomNumbers, own_stream
from sgpmil.processes import handle_signal

T = TypeVar("T")

_here = threading.local()

_SIGNAL_PERIOD_S = 0.2
"""Seconds after which the thread that waits for jobs handles signals."""


def yield_turn() -> None:
    """Let each of the other jobs have a turn; do nothing where there are none."""
    worker: _Worker | None = getattr(_here, "worker", None)
    if worker is not None:
        worker.yield_turn()


@contextmanager
def release_turn() -> Iterator[None]:
    """Let other jobs run while the block waits for a GPU or a disk.

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
    """Run jobs, several of them at once, and return their results.

    Where one fails, the others end at their next step, and its error is raised. The caller's random
    numbers stay as they were.

    Args:
        jobs: The jobs, in the order in which they start.
        at_once: Largest number of jobs at once.
        device: Device that computes.
        on_stop: Called when Ctrl-C ends jobs that have started.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C.
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
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait()
    except BaseException:  # Ctrl-C, above all
        # A second Ctrl-C must not interrupt what the first one ends.
        with (
            handle_signal(signal.SIGINT, signal.SIG_IGN),
            handle_signal(signal.SIGTERM, signal.SIG_IGN),
        ):
            on_stop()
            # A job finishes the file it is writing, and starts nothing.
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
    """A lock that goes to those who wait in the order in which they came."""

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
        """Give and take in one, so that this thread is in the queue before the next one gives."""
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
    """Jobs, the turn, and the results."""

    def __init__(self, jobs: Sequence[Callable[[], Any]]) -> None:
        self.turn = _Turn()
        self.is_stopped = False
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self._jobs = list(jobs)
        self._begun = 0

    def do_next(self) -> bool:
        """Run the next job; return whether there was one and it succeeded."""
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
        """Keep the error of a job, and end the others."""
        self.errors[number] = error
        self.is_stopped = True


class _Worker:
    """A thread that runs jobs one after another, in its turns."""

    def __init__(self, number: int, queue: _Queue, device: torch.device) -> None:
        self._number = number
        self._queue = queue
        self._device = device
        self._random = RandomNumbers(device)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._is_done = threading.Event()

    def start(self) -> None:
        """Start with the first job."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has no job left, if it was started.

        Not by joining the thread: after an interrupted join, Python believes that it has ended.
        """
        while self._thread.ident is not None and not self._is_done.wait(_SIGNAL_PERIOD_S):
            pass  # Python handles signals between two waits

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

    def yield_turn(self) -> None:
        """Let others have a turn, and end the job where all jobs end."""
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
