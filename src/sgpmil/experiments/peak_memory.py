"""Peak memory of a block of code."""

import ctypes
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

_STATUS = Path("/proc/self/status")
_EVERY = 0.005
"""Seconds between two looks."""


class PeakMemory:
    """Context manager that measures the peak of memory above that at its start.

    On a GPU, it measures the memory that torch allocates. On a CPU, it measures the process's own
    memory, without pages of mapped files, which the system can take back.

    Args:
        device: Device that does the work.
        with_kept: On a GPU, also count memory that torch keeps for later: recorded steps keep their
            own memory between two replays.

    Example:
        >>> with PeakMemory(torch.device("cpu")) as peak:
        ...     grown = torch.ones(2**25)
        >>> peak.bytes is None or peak.bytes >= 2**26
        True
    """

    bytes: int | None = None
    """The peak; None where the system does not report it."""

    def __init__(self, device: torch.device, *, with_kept: bool = False) -> None:
        self._device = device
        self._with_kept = with_kept
        self._stop = threading.Event()
        self._before = self._most = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = self._on_gpu(peak=False)
        elif _STATUS.exists():
            _give_back_freed()
            self._before = self._most = _own_memory()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device.type == "cuda":
            self.bytes = self._on_gpu(peak=True) - self._before
        elif self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self.bytes = max(self._most, _own_memory()) - self._before

    def _on_gpu(self, *, peak: bool) -> int:
        if self._with_kept:
            look = torch.cuda.max_memory_reserved if peak else torch.cuda.memory_reserved
        else:
            look = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
        return look(self._device)

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            self._most = max(self._most, _own_memory())


def _give_back_freed() -> None:
    """Return freed memory to the system; otherwise the block could use it uncounted."""
    with suppress(OSError, AttributeError):  # not every C library can
        ctypes.CDLL(None).malloc_trim(0)


def _own_memory() -> int:
    lines = _STATUS.read_text().splitlines()
    return sum(int(x.split()[1]) * 1024 for x in lines if x.startswith(("RssAnon", "RssShmem")))
