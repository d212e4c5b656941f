"""Work through jobs in this process or in several, of one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_end
from typing import Any, TypeVar

import torch

from sgpmil.errors import SettingsError, TrainingError

__all__ = ["one_thread", "run_all"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def run_all(
    start: Callable[[], Callable[[_Job], _Result]],
    jobs: Sequence[_Job],
    *,
    processes: int,
    on_change: Callable[[Sequence[_Job]], None],
    on_done: Callable[[_Job, _Result], None],
) -> None:
    """Run jobs in their order.

    Args:
        start: Makes the function that runs a job; called once in every process.
        jobs: The jobs.
        processes: Number of processes; 1 works in this one.
        on_change: Called with the jobs in flight, whenever they change.
        on_done: Called with a job and what came of it, as soon as it is done.

    Raises:
        SettingsError: There is not even one process.
        TrainingError: A process died.
    """
    if processes < 1:
        raise SettingsError(f"Expected at least one process (--jobs), but got {processes}.")
    if processes > 1 and len(jobs) > 1:
        _run_in_pool(start, jobs, min(processes, len(jobs)), on_change, on_done)
        return
    with one_thread():
        run = start()
        for job in jobs:
            on_change([job])
            on_done(job, run(job))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread while the block runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_in_pool(
    start: Callable[[], Callable[[_Job], _Result]],
    jobs: Sequence[_Job],
    processes: int,
    on_change: Callable[[Sequence[_Job]], None],
    on_done: Callable[[_Job, _Result], None],
) -> None:
    # Spawned, not forked: a fork of a process that has used CUDA or threads hangs.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, _start_worker, (start,))
    waiting = iter(jobs)
    running: dict[Future[Any], _Job] = {}
    try:
        while True:
            # No more than can run: what is in flight is then known, and nothing else is lost.
            for job in waiting:
                running[pool.submit(_run_in_worker, job)] = job
                if len(running) == processes:
                    break
            if not running:
                break
            on_change(list(running.values()))
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                on_done(running.pop(future), future.result())
        pool.shutdown()
    except BaseException as error:
        # Nobody waits for the jobs in flight any more: their files do not exist yet.
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise TrainingError(
                "A process of the study died, perhaps for want of memory. Call again to go on, "
                "with fewer --jobs if it happens again."
            ) from error
        raise


_worker: list[Callable[[Any], Any]] = []
"""What runs a job in a process of the pool."""


def _start_worker(start: Callable[[], Callable[[Any], Any]]) -> None:
    # Ctrl-C reaches every process of a terminal; the parent ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _worker[:] = [start()]


def _run_in_worker(job: Any) -> Any:
    return _worker[0](job)


def _end_with_parent() -> None:
    """Do not outlive a parent that was killed and could not say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_end([parent.sentinel])
        os._exit(1)
