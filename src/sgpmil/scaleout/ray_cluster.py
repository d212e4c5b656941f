"""Jobs on a Ray cluster.

Ray schedules: a worker is a Ray actor that declares its CPUs and GPUs, and keeps what jobs share.
A worker that dies, or whose machine is lost, costs nothing but its job, which another one begins
again and, where it left a checkpoint, continues.
"""

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import ray
import torch
from ray._private.utils import read_ray_address  # no public function tells it
from ray.exceptions import RayError

from sgpmil.errors import ClusterError, SettingsError
from sgpmil.processes import available_cores
from sgpmil.scaleout.executors import RunningJob

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

VERSION = version("sgpmil")

MOST_ATTEMPTS = 5
"""Workers that may die with a job before it counts as the cause."""

_MOST_START_FAILURES = 3
"""Workers that may fail to start, one after another, on machines that stay."""
_POLL_S = 1.0
"""Longest wait before the running jobs are shown again, and new machines are looked for."""

_OBJECT_STORE_BYTES = 512 * 2**20
"""Object store of a cluster that is started on this machine alone; larger objects go to disk."""

_PATIENCE = 10.0
"""Seconds in which a cluster must take a connection."""


def connect(address: str | None = None) -> None:
    """Connect to a cluster, once a process.

    Args:
        address: Address of the cluster, such as ``ray://head:10001``. None takes the one that
            ``RAY_ADDRESS`` names or that this machine was made a part of (``ray start`` notes its
            address), or starts one on this machine alone; ``local`` always starts one.

    Raises:
        ClusterError: The cluster does not answer.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A job without a GPU must not take the one that this machine has.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    alone: dict[str, Any] = {
        "num_cpus": available_cores(),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }
    # Not "auto", which takes any cluster that runs here, as another program's own.
    named = address or os.environ.get("RAY_ADDRESS") or None
    noted = read_ray_address() if named is None else None
    try:
        if named is None and (noted is None or not _listens(noted)):  # it may have ended
            named = "local"
        if named not in (None, "local") and not _listens(named):
            raise ConnectionError("connection refused")
        ray.init(named or noted, **quiet, **(alone if named == "local" else {}))
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        place = named or noted
        raise ClusterError(
            f"Expected a Ray cluster at {place}, but it does not answer "
            f"({' '.join(str(error).split())[:200]}). Check the address and that the cluster runs "
            f"Ray {ray.__version__}."
        ) from error


def _listens(address: str) -> bool:
    """Check that something listens at an address. Ray itself asks a dead cluster for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdigit()):  # a name of Ray's own, such as "auto"
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE):
            return True
    except (OSError, OverflowError):
        return False


class _Worker:
    """A worker on one of the machines.

    Args:
        start: Reference of the function that makes the function that runs a job.
        threads: Threads of torch.
    """

    def __init__(self, start: Sequence[Any], threads: int) -> None:
        torch.set_num_threads(threads)
        self._start = start[0]
        self._run: Callable[[Any], Any] | None = None

    def where(self) -> tuple[str, str]:
        """Return the machine that this runs on, and the version of this package there."""
        return ray.get_runtime_context().get_node_id(), VERSION

    def work(self, job: Any) -> tuple[Any, Exception | None]:
        """Run a job; return its result or its error."""
        try:
            if self._run is None:
                self._run = ray.get(self._start)()
            return self._run(job), None
        except RayError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again by the driver
            return None, error


@dataclass(eq=False)
class _Hired(Generic[_Job]):
    """A worker as the driver sees it: starting, idle, or with a job."""

    actor: Any
    started: Any
    machines: frozenset[str]
    place: str = ""
    job: "_Begun[_Job] | None" = None


@dataclass(eq=False)
class _Begun(Generic[_Job]):
    job: _Job
    attempt: int = 1


@dataclass(frozen=True)
class RayExecutor:
    """Runs jobs on a Ray cluster.

    Args:
        address: Address of the cluster; see `connect`.
        cpus: CPU cores of a job.
        gpus: GPUs of a job; a fraction lets jobs share one.
        attempts: Workers that may die with a job.

    Raises:
        SettingsError: A number is out of range.
    """

    address: str | None = None
    cpus: int | float = 1
    gpus: int | float = 0
    attempts: int = MOST_ATTEMPTS

    def __post_init__(self) -> None:
        for name, least in (("cpus", 0), ("gpus", 0), ("attempts", 1)):
            if not least <= getattr(self, name) < float("inf"):
                raise SettingsError(
                    f"Expected {name} of a job to be at least {least}, but got "
                    f"{getattr(self, name)}."
                )
        if self.cpus + self.gpus <= 0:
            raise SettingsError("Expected a job to take a part of a CPU or of a GPU.")

    def run(
        self,
        start: Callable[[], Callable[[_Job], _Result]],
        jobs: Sequence[_Job],
        *,
        on_change: Callable[[Sequence[RunningJob[_Job]]], None],
        on_done: Callable[[_Job, _Result], None],
        on_death: Callable[[_Job], _Result],
    ) -> None:
        """See `Executor`.

        Raises:
            ClusterError: The cluster does not answer, has no machine that a job fits on, or its
                workers do not start.
        """
        if not jobs:
            return
        self.require_room()
        dispatch = _Dispatch(self, ray.put(start), jobs, on_change)
        try:
            while dispatch.has_work:
                dispatch.hire()
                for begun, answer in dispatch.answers():
                    if answer is None:
                        on_done(begun.job, on_death(begun.job))
                        continue
                    result, error = answer
                    if error is not None:
                        raise error
                    on_done(begun.job, result)
        finally:
            dispatch.end()

    def require_room(self) -> None:
        """See `Executor`: connects to the cluster."""
        connect(self.address)
        if self.slots() == 0:
            raise ClusterError(
                f"Expected a machine with {self.cpus:g} CPUs and {self.gpus:g} GPUs in the "
                f"cluster, but it has {_described()}. Lower `cpus_per_job` or `gpus_per_job`."
            )

    def slots(self) -> int:
        """Count the jobs that fit on the cluster at a time."""
        total = 0
        for node in ray.nodes():
            has = node.get("Resources", {}) if node.get("Alive") else {}
            fits = [
                has.get(name, 0.0) / need
                for name, need in (("CPU", self.cpus), ("GPU", self.gpus))
                if need
            ]
            total += int(min(fits) + 1e-6)
        return total


@dataclass(eq=False)
class _Dispatch(Generic[_Job]):
    """Jobs that wait, and workers that run them."""

    executor: RayExecutor
    start: Any
    jobs: Sequence[_Job]
    on_change: Callable[[Sequence[RunningJob[_Job]]], None]
    waiting: "deque[_Begun[_Job]]" = field(init=False)
    hired: "list[_Hired[_Job]]" = field(default_factory=list)
    start_failures: int = 0
    looked: float = -float("inf")
    names: dict[str, str] = field(default_factory=dict)
    make: Any = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = deque(_Begun(job) for job in self.jobs)
        executor = self.executor
        self.make = ray.remote(_Worker).options(
            num_cpus=executor.cpus, num_gpus=executor.gpus, max_restarts=0, max_task_retries=0
        )

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or any(worker.job for worker in self.hired)

    def hire(self) -> None:
        """Give jobs to idle workers, and start workers while there are jobs and room for them."""
        for worker in [w for w in self.hired if w.started is None and w.job is None]:
            if self.waiting:
                worker.job = self.waiting.popleft()
                worker.started = worker.actor.work.remote(worker.job.job)
            else:
                self._dismiss(worker)
        if time.monotonic() - self.looked >= _POLL_S:
            self.looked = time.monotonic()
            num_starting = sum(w.job is None for w in self.hired)
            room = self.executor.slots() - len(self.hired)
            threads = max(1, int(self.executor.cpus))
            for _ in range(min(room, len(self.waiting) - num_starting)):
                actor = self.make.remote([self.start], threads)
                self.hired.append(_Hired(actor, actor.where.remote(), _machines()))
        self.on_change(
            [RunningJob(w.job.job, w.place, w.job.attempt) for w in self.hired if w.job is not None]
        )

    def answers(self) -> "list[tuple[_Begun[_Job], tuple[Any, Exception | None] | None]]":
        """Wait a moment; return the jobs that ended, with None where workers died with them."""
        pending = {w.started: w for w in self.hired if w.started is not None}
        ready = ray.wait(list(pending), timeout=_POLL_S)[0] if pending else []
        if not pending:
            time.sleep(_POLL_S / 10)  # all machines are gone: wait for one to come
        found: list[tuple[_Begun[_Job], tuple[Any, Exception | None] | None]] = []
        for reference in ready:
            worker = pending[reference]
            begun, worker.job, worker.started = worker.job, None, None
            try:
                answer = ray.get(reference)
            except RayError as error:  # the process or its machine died
                self._dismiss(worker)
                if begun is None:
                    # Of a machine that was lost, another worker is started elsewhere.
                    if worker.machines <= _machines():
                        self._start_failed(error)
                elif begun.attempt >= self.executor.attempts:
                    found.append((begun, None))
                else:
                    self.waiting.appendleft(_Begun(begun.job, begun.attempt + 1))
                continue
            if begun is None:
                self.start_failures = 0
                worker.place = self._name(*answer)
            else:
                found.append((begun, answer))
        return found

    def end(self) -> None:
        """End all workers. What runs is resumable: files are whole or absent."""
        for worker in list(self.hired):
            self._dismiss(worker)

    def _dismiss(self, worker: "_Hired[_Job]") -> None:
        with suppress(RayError, ValueError):
            ray.kill(worker.actor)
        self.hired.remove(worker)

    def _start_failed(self, error: RayError) -> None:
        self.start_failures += 1
        if self.start_failures >= _MOST_START_FAILURES:
            text = " ".join(str(error).split())
            raise ClusterError(
                f"Workers on the cluster do not start ({text[:300]}). Check that its machines "
                f"reach this one, and that they have sgpmil {VERSION} and Ray {ray.__version__}."
            ) from error

    def _name(self, node: str, found: str) -> str:
        """Return the name of a machine; machines of one host name are numbered."""
        if found != VERSION:
            raise ClusterError(
                f"Expected sgpmil {VERSION} on every machine of the cluster, but found "
                f"{found}. Install the same version."
            )
        if node not in self.names:
            hosts = {n["NodeID"]: str(n.get("NodeManagerHostname", "")) for n in ray.nodes()}
            shared = Counter(hosts.values())[hosts.get(node, "")] > 1
            self.names[node] = hosts.get(node, "") + (f"#{node[:4]}" if shared else "")
        return self.names[node]


def _machines() -> frozenset[str]:
    return frozenset(str(node["NodeID"]) for node in ray.nodes() if node.get("Alive"))


def _described() -> str:
    nodes = [node["Resources"] for node in ray.nodes() if node.get("Alive")]
    each = sorted({f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in nodes})
    return f"{len(nodes)} with {' or '.join(each) or 'nothing'}"
