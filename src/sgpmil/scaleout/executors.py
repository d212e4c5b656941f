"""Executors: jobs in this process, in several processes, or on a Ray cluster.

A *job* is any value that can be pickled. `Executor.run` hands each to a function that is made once
in every worker, so that workers keep what jobs share: a data set, a trained model, an encoder.
"""

import multiprocessing
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from sgpmil.errors import MissingPartError, SettingsError
from sgpmil.installation import install_command
from sgpmil.options import Options
from sgpmil.processes import hold_interrupts, one_thread, set_up_worker

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RunningJob(Generic[_Job]):
    """A job that runs now.

    Args:
        job: The job.
        place: Name of the machine; empty on this one.
        attempt: Number of workers that died with it before, plus 1.
    """

    job: _Job
    place: str = ""
    attempt: int = 1

    def row(self, *texts: str) -> tuple[str, ...]:
        """Return a row of the table of running jobs: what runs, where, and how often it began.

        Args:
            texts: What runs, and how far it is.
        """
        return (*texts, self.place, "" if self.attempt == 1 else f"attempt {self.attempt}")


@runtime_checkable
class Executor(Protocol):
    """Runs jobs."""

    def require_room(self) -> None:
        """Refuse a place where no job can run; to be asked before anything is replaced.

        Raises:
            ClusterError: The place does not answer, or has no room for a job.
        """
        ...

    def run(
        self,
        start: Callable[[], Callable[[_Job], _Result]],
        jobs: Sequence[_Job],
        *,
        on_change: Callable[[Sequence[RunningJob[_Job]]], None],
        on_done: Callable[[_Job, _Result], None],
        on_death: Callable[[_Job], _Result],
    ) -> None:
        """Run jobs, started in their order; the first error of a job is raised.

        Args:
            start: Makes the function that runs a job; called once in every worker.
            jobs: The jobs.
            on_change: Called with the running jobs when they change, and now and then.
            on_done: Called with a job and its result, as soon as it is done.
            on_death: Returns the result of a job with which workers died, as when memory runs
                out; the others continue.
        """
        ...


@dataclass(frozen=True)
class LocalExecutor:
    """Runs jobs on this machine, in processes of one thread each.

    Args:
        processes: Number of processes; 1 works in this one.

    Raises:
        SettingsError: The number of processes is below 1.
    """

    processes: int = 1

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise SettingsError(
                f"Expected at least one process (`jobs`), but got {self.processes}."
            )

    def require_room(self) -> None:
        """See `Executor`: there is always room here."""

    def run(
        self,
        start: Callable[[], Callable[[_Job], _Result]],
        jobs: Sequence[_Job],
        *,
        on_change: Callable[[Sequence[RunningJob[_Job]]], None],
        on_done: Callable[[_Job, _Result], None],
        on_death: Callable[[_Job], _Result],
    ) -> None:
        """See `Executor`."""
        if self.processes > 1 and len(jobs) > 1:
            num = min(self.processes, len(jobs))
            _run_in_processes(start, jobs, num, on_change, on_done, on_death)
            return
        with one_thread():
            run = start()
            for job in jobs:
                on_change([RunningJob(job)])
                on_done(job, run(job))


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
        with hold_interrupts():
            self.process.start()
        theirs.close()  # now the process alone holds it, and its death closes it

    def end(self) -> None:
        """End the process. A running job has written nothing yet."""
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _run_in_processes(
    start: Callable[[], Callable[[_Job], _Result]],
    jobs: Sequence[_Job],
    processes: int,
    on_change: Callable[[Sequence[RunningJob[_Job]]], None],
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
            on_change([RunningJob(job) for _, job in running.values()])
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


def _work(start: Callable[[], Callable[[Any], Any]], connection: Connection) -> None:
    """Run jobs as they come, in a process of its own."""
    set_up_worker()
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


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(Options):
    """Places where jobs run.

    Args:
        on: Place of the jobs: local (this machine), ray (the Ray cluster that ray start made this
            machine a part of, or a new one on this machine alone), or ray://HOST:PORT.
        cpus_per_job: CPU cores of a job on Ray.
        gpus_per_job: GPUs of a job on Ray; a fraction, such as 0.25, lets four jobs share one.
        shared_folder: On Ray, whether all machines see the folders under the same paths. Without,
            data and results travel through Ray's object store, and a job whose machine is lost
            starts anew, not from its checkpoint.
    """

    on: str = "local"
    cpus_per_job: float = 1.0
    gpus_per_job: float = 0.0
    shared_folder: bool = True

    @property
    def is_local(self) -> bool:
        """Return whether jobs run on this machine, without Ray."""
        return self.on == "local"

    @property
    def address(self) -> str | None:
        """Address of the Ray cluster; None for the one of this machine."""
        return self.on if self.on.startswith("ray://") else None

    def executor(self, processes: int = 1, *, needs_shared_folder: bool = False) -> Executor:
        """Return the executor.

        Args:
            processes: Number of processes of a local one.
            needs_shared_folder: Whether the jobs read and write files by their paths.

        Raises:
            SettingsError: There is no such place, or a number is out of range.
            MissingPartError: Ray is not installed.
        """
        if self.is_local:
            if self.gpus_per_job or self.cpus_per_job != 1 or not self.shared_folder:
                raise SettingsError(
                    "`cpus_per_job`, `gpus_per_job` and `shared_folder` are about jobs on Ray. "
                    'Add `on="ray"`, or leave them out.'
                )
            return LocalExecutor(processes)
        self.require_ray(needs_shared_folder=needs_shared_folder)
        from sgpmil.scaleout.ray_cluster import RayExecutor

        return RayExecutor(self.address, cpus=self.cpus_per_job, gpus=self.gpus_per_job)

    def require_ray(self, *, needs_shared_folder: bool = False) -> None:
        """Refuse a place that there is not, and jobs on Ray without Ray.

        Args:
            needs_shared_folder: Whether the jobs read and write files by their paths.

        Raises:
            SettingsError: There is no such place, or its machines share no folder.
            MissingPartError: Ray is not installed.
        """
        if not re.fullmatch(r"local|ray|ray://[\w.\-\[\]:]+:\d+", self.on):
            raise SettingsError(
                f"Expected `on` to be local, ray or ray://HOST:PORT, but got '{self.on}'."
            )
        if needs_shared_folder and not self.shared_folder:
            raise SettingsError(
                "These jobs read and write files, which every machine must see under the same "
                "path. Leave out `shared_folder=False`."
            )
        try:
            import ray  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise MissingPartError(
                f"Jobs on Ray need the package ray. Install it: {install_command('ray')}"
            ) from error
