"""One process at a time works on a slide.

The lock is the system's own, on an open file beside the output: it ends with the process, however
that ends, so a killed extraction leaves nothing that would stop the next one.
"""

import glob
import os
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has no such lock; a slide is then not guarded.
    fcntl = None  # type: ignore[assignment]

__all__ = ["SlideLock", "remove_leftovers"]


class SlideLock:
    """The right to write one file.

    Args:
        output: The file that is to be written.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.lock")
        self._file: IO[Any] | None = None

    def acquire(self) -> bool:
        """Take the lock; say whether it was free."""
        if fcntl is None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        if not self._is_on_disk(file):
            # Its holder removed the file between our opening and locking it.
            file.close()
            return self.acquire()
        self._file = file
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _is_on_disk(self, file: IO[Any]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


def remove_leftovers(output: Path) -> None:
    """Remove what a killed process had begun to write. Its lock must be held.

    Args:
        output: The file that it would have become.
    """
    for begun in output.parent.glob(f".{glob.escape(output.name)}.*.tmp"):
        begun.unlink(missing_ok=True)
