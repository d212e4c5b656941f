"""Work through jobs in this process or in several, of one thread each."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from sgpmil.errors import SettingsError

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
    on_death: Callable[[_Job], _Result],
) -> None:
    """Run jobs in their order.

    Args:
        start: Makes the function that runs a job; called once in every process.
        jobs: The jobs.
        processes: Number of processes; 1 works in this one.
        on_change: Called with the jobs in flight, whenever they change.
        on_done: Called with a job and what came of it, as soon as it is done.
        on_death: Gives what comes of a job whose process was killed, as the system does for want
            of memory; the others go on.

    Raises:
        SettingsError: There is not even one process.
    """
    if processes < 1:
        raise SettingsError(f"Expected at least one process (--jobs), but got {processes}.")
    if processes > 1 and len(jobs) > 1:
        _run_in_processes(start, jobs, min(processes, len(jobs)), on_change, on_done, on_death)
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


class _Worker:
    """A process that runs one job at a time.

    Args:
        start: Makes the function that runs a job.
    """

    def __init__(self, start: Callable[[], Callable[[Any], Any]]) -> None:
        # Spawned, not forked: a fork of a process that has used CUDA or threads hangs.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(start, theirs), daemon=True)
        with _deaf_to_interrupts():
            self.process.start()
        theirs.close()  # now the process alone holds it, and its death closes it

    def end(self) -> None:
        """End the process, whatever it is at: a job in flight has written nothing yet."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _run_in_processes(
    start: Callable[[], Callable[[_Job], _Result]],
    jobs: Sequence[_Job],
    processes: int,
    on_change: Callable[[Sequence[_Job]], None],
    on_done: Callable[[_Job, _Result], None],
    on_death: Callable[[_Job], _Result],
) -> None:
    waiting = list(reversed(jobs))
    idle: list[_Worker] = []
    running: dict[Connection, tuple[_Worker, _Job]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                worker, job = idle.pop() if idle else _Worker(start), waiting.pop()
                try:
                    worker.connection.send(job)
                except OSError:  # killed while it waited
                    worker.end()
                    waiting.append(job)
                else:
                    running[worker.connection] = (worker, job)
            on_change([job for _, job in running.values()])
            ready = wait(list(running))
            for connection in [connection for connection in running if connection in ready]:
                worker, job = running[connection]
                try:
                    result, error = connection.recv()
                except (EOFError, OSError):
                    worker.end()
                    result, error = on_death(job), None
                else:
                    idle.append(worker)
                del running[connection]
                if error is not None:
                    raise error
                on_done(job, result)
    finally:
        for worker in (*idle, *(worker for worker, _ in running.values())):
            worker.end()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let processes that are started in the block ignore Ctrl-C, while they import as well.

    It reaches every process of a terminal; the parent ends the others.
    """
    if threading.current_thread() is not threading.main_thread():  # others may not set signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _work(start: Callable[[], Callable[[Any], Any]], connection: Connection) -> None:
    """Run jobs as they come, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    run = start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        answer: tuple[Any, Exception | None]
        try:
            answer = (run(job), None)
        except Exception as error:  # noqa: BLE001 - raised again in the parent
            answer = (None, error)
        connection.send(answer)


def _end_with_parent() -> None:
    """Do not outlive a parent that was killed and could not say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
