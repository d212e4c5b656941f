"""Locks, worker processes, Ctrl-C and devices, for all rooms."""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import parent_process, resource_tracker
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from sgpmil.errors import SettingsError

if TYPE_CHECKING:  # imported when it is first used: workers that decode tiles do not need it
    import torch

try:
    import fcntl
except ImportError:  # Windows has no such lock; nothing is guarded there.
    fcntl = None  # type: ignore[assignment]

SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers

_RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
"""Variables of the environment that number the processes of a training."""

_REPEAT_AFTER_S = 0.05

_WORTH_THREADS = 1e8
"""Multiplications of a step from which several threads are faster than one."""


class FileLock:
    """A right that one process has, or several share, held through a lock file.

    The lock belongs to the operating system, so it ends with the process, even after kill -9: a
    killed job leaves nothing that blocks the next one.

    Args:
        path: The lock file. It exists while the lock is held.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[Any] | None = None
        self._is_shared = False

    def acquire(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Take the lock; return whether it was free.

        Args:
            shared: Share it with others that do so, too.
            wait: Wait until it is free.

        Raises:
            OSError: The lock file cannot be written.
        """
        if fcntl is None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            file = self.path.open("w")
            try:
                fcntl.flock(file, kind if wait else kind | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            if self._is_on_disk(file):
                self._file, self._is_shared = file, shared
                return True
            # The last holder removed the file after we opened it. A lock on a file that is not
            # on disk guards nothing: the next process locks a new file beside it.
            file.close()

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            # Removed while locked: whoever holds this file open finds it gone and starts again.
            if not self._is_shared or self._is_last(self._file):
                self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    @staticmethod
    def _is_last(file: IO[Any]) -> bool:
        """Return whether nobody else shares the lock; it is exclusive then."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_on_disk(self, file: IO[Any]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back in this thread, and keep it from the processes that start in the block.

    A terminal sends Ctrl-C to all of its processes. One that is just starting would answer with a
    traceback. This process receives Ctrl-C at the end of the block and ends the others.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Python's own helper process clears the signal mask when it starts, so start it first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def repeat_lost_interrupts() -> Iterator[None]:
    """Send Ctrl-C again where Python dropped it, while the block runs.

    Python prints and drops an exception that is raised while an object is finalised. A Ctrl-C that
    arrives at that moment would not stop the program. Nothing is sent after the end of the block.
    """
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def repeat(lost: "sys.UnraisableHookArgs") -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            before(lost)
            return
        # A little later, so that it does not arrive in this function; if it is lost again, this
        # function is called again.
        again = threading.Timer(_REPEAT_AFTER_S, _interrupt_main_thread)
        again.daemon = True
        timers.append(again)
        again.start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


def _interrupt_main_thread() -> None:
    ident = threading.main_thread().ident
    if ident is None or not hasattr(signal, "pthread_kill"):  # Windows
        _thread.interrupt_main()
        return
    signal.pthread_kill(ident, signal.SIGINT)  # a real signal also ends a wait


@contextmanager
def handle_signal(number: signal.Signals, handler: "SignalHandler") -> Iterator[None]:
    """Answer a signal with a handler while the block runs; do nothing outside the main thread.

    Args:
        number: The signal, such as ``signal.SIGTERM``.
        handler: A function of the signal's number and the stack frame, or ``signal.SIG_IGN``.
    """
    before = signal.getsignal(number)
    # Python sets handlers in the main thread only. It cannot restore a handler written in C (None).
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def is_first_process() -> bool:
    """Return whether this is the first of the processes that train together."""
    return all(os.environ.get(rank, "0") == "0" for rank in _RANKS)


def available_cores() -> int:
    """Count the cores that this process may use: a container or a job may not use all."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread while the block runs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(multiplications: float | int) -> AbstractContextManager[None]:
    """Let torch use one thread while a block runs whose steps compute little.

    Threads with little to do wait for each other at each operation: beside other processes, which
    take their cores, many times longer than they compute.

    Args:
        multiplications: Multiplications of a step.
    """
    return nullcontext() if multiplications >= _WORTH_THREADS else one_thread()


def set_up_worker(on_orphaned: Callable[[], None] | None = None) -> None:
    """Set up a worker process: it ignores Ctrl-C and ends when its parent dies.

    Args:
        on_orphaned: Called after the parent died, before this process ends: removes files that
            the parent can no longer remove.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent alone answers Ctrl-C
    threading.Thread(target=_end_with_parent, args=(on_orphaned,), daemon=True).start()


def _end_with_parent(on_orphaned: Callable[[], None] | None) -> None:
    parent = parent_process()
    if parent is None:
        return
    parent.join()
    if on_orphaned is not None:
        on_orphaned()
    os._exit(1)


def compute_device(name: str = "auto", *, needs_float64: bool = True) -> "torch.device":
    """Return the device of a name.

    Args:
        name: ``cpu``; ``gpu`` or ``cuda``; one of several GPUs, such as ``cuda:1``; or ``auto``, a
            GPU where there is one.
        needs_float64: Whether to compute in float64, as the Gaussian process does. Otherwise other
            devices of torch, such as Apple's ``mps``, are accepted as well.

    Raises:
        SettingsError: The name is none of these, or there is no such device.
    """
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if num_gpus else "cpu")
    try:
        device = torch.device("cuda" + name[3:] if name.startswith("gpu") else name)
    except RuntimeError:
        device = None
    if device is None or (needs_float64 and device.type not in ("cpu", "cuda")):
        raise SettingsError(
            f"Expected device to be auto, cpu, gpu or one of several GPUs, such as cuda:1, but "
            f"got '{name}'."
        )
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise SettingsError(
            f"Expected a GPU for device '{name}', but found {num_gpus or 'none'}. Use 'auto' or "
            "'cpu'."
        )
    return device
