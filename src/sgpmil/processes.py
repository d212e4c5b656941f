"""Locks, worker processes, Ctrl-C, progress bars and devices, for all rooms."""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from sgpmil.errors import SettingsError

if TYPE_CHECKING:  # imported when they are first used: workers that decode tiles need neither
    import torch
    from rich.console import Console
    from rich.progress import Progress

try:
    import fcntl
except ImportError:  # Windows has no such lock; nothing is guarded there.
    fcntl = None  # type: ignore[assignment]

SignalHandler = Callable[[int, FrameType | None], Any] | int | signal.Handlers

_SPEED_PERIOD_S = 24 * 3600.0
"""Seconds over which the speed is averaged: a slide can take longer than rich's half minute."""

_REPEAT_AFTER_S = 0.05


class FileLock:
    """The exclusive right of one process, held through a lock file.

    The lock belongs to the operating system, so it ends with the process, even after kill -9: a
    killed job leaves nothing that blocks the next one.

    Args:
        path: The lock file. It exists while the lock is held.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[Any] | None = None

    def acquire(self) -> bool:
        """Take the lock; return whether it was free.

        Raises:
            OSError: The lock file cannot be written.
        """
        if fcntl is None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = self.path.open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            if self._is_on_disk(file):
                self._file = file
                return True
            # The last holder removed the file after we opened it. A lock on a file that is not
            # on disk guards nothing: the next process locks a new file beside it.
            file.close()

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            # Removed while locked: whoever holds this file open finds it gone and starts again.
            self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

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


def available_cores() -> int:
    """Count the cores that this process may use: a container or a job may not use all."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


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


class ProgressBar:
    """A progress bar on standard error. Without a terminal, such as in a log file, it is hidden.

    Args:
        bars: The bars of rich that this one belongs to.
        text: Text in front of the bar.
        total: Units of work in all; None where unknown.
        num_done: Units that were done before.
    """

    def __init__(
        self, bars: "Progress", text: str = "", total: int | None = None, num_done: int = 0
    ) -> None:
        self.bars = bars
        self._total = total
        self._done: int | float = num_done
        self._task = bars.add_task(text, total=total, completed=num_done, state="")

    @property
    def count(self) -> str:
        """Units done so far, of all: ``3 of 40``."""
        whole = int(self._done)
        return f"{whole}" if self._total is None else f"{whole} of {self._total}"

    def begin(self, text: str, total: int | None) -> None:
        """Start from zero with another text and total."""
        self._total, self._done = total, 0
        self.bars.reset(self._task, total=total, description=text)

    def advance(self, num: int | float = 1) -> None:
        """Add units of work that are done."""
        self.reach(self._done + num)

    def reach(self, done: int | float) -> None:
        """Set the units of work that are done."""
        self._done = done
        self.bars.update(self._task, completed=done)

    def show(self, *, text: str | None = None, state: str | None = None) -> None:
        """Change the text in front of the bar, or the state behind it."""
        self.bars.update(self._task, description=text)
        if state is not None:
            self.bars.update(self._task, state=state)

    def finish(self, state: str = "") -> None:
        """Fill the bar, also where the work ended early."""
        done = self._done or self._total
        self.bars.update(self._task, total=done, completed=done, state=state)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def log(self, text: str) -> None:
        """Print a line where the bar is hidden, so that a log file shows the progress."""
        if not _is_visible(self.bars.console):
            self.say(text)


class ProgressBars:
    """Progress bars below each other. `progress_bars` makes them."""

    def __init__(self, bars: "Progress") -> None:
        self.bars = bars

    @contextmanager
    def bar(self, text: str = "", total: int | None = None) -> Iterator[ProgressBar]:
        """Show another bar while the block runs."""
        bar = ProgressBar(self.bars, text, total)
        try:
            yield bar
        finally:
            self.bars.remove_task(bar._task)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bars(unit: str, *, show: bool = True) -> Iterator[ProgressBars]:
    """Show progress bars on standard error while the block runs."""
    with _rich_progress(unit, show=show) as bars:
        yield ProgressBars(bars)


@contextmanager
def progress_bar(
    text: str, total: int | None, unit: str, *, num_done: int = 0, show: bool = True
) -> Iterator[ProgressBar]:
    """Show one progress bar on standard error while the block runs.

    Example:
        >>> with progress_bar("Reading", 2, "slides", show=False) as bar:
        ...     bar.advance()
        ...     bar.count
        '1 of 2'
    """
    with _rich_progress(unit, show=show) as bars:
        yield ProgressBar(bars, text, total, num_done)


def _rich_progress(unit: str, *, show: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    console = Console(stderr=True, quiet=not show)
    # In a narrow terminal the state is cut, not the count and the time left.
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn(unit, table_column=Column(no_wrap=True)),
        TimeRemainingColumn(),
        TextColumn(
            "{task.fields[state]}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
    )
    return Progress(
        *columns,
        console=console,
        transient=True,
        expand=True,
        disable=not show or not _is_visible(console),
        speed_estimate_period=_SPEED_PERIOD_S,
    )


def _is_visible(console: "Console") -> bool:
    return console.is_terminal or console.is_jupyter


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
