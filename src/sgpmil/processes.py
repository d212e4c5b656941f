"""Locks between processes."""

import os
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has no such lock; nothing is guarded there.
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileLock"]


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
