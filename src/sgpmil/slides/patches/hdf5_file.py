"""HDF5 files that are either whole or absent, on a full disk too."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import h5py

from sgpmil.bags.files import temporary_sibling


class NewHdf5File:
    """An HDF5 file that appears under its name when it is whole.

    It is written under a hidden name beside it, brought to the disk, and renamed. As a context
    manager it is finished at the end of the block, or dropped where that fails.

    Args:
        path: Final name of the file; missing folders are created.

    Raises:
        OSError: The file cannot be written, with the system's reason and the final name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._temporary = temporary_sibling(self.path)
        self._disk = _Disk(self.path, self._temporary)
        try:
            self.file = h5py.File(self._disk, "w")
        except BaseException:
            self._disk.close()
            self._temporary.unlink(missing_ok=True)
            raise

    def check(self) -> None:
        """Raise the error of an earlier write that failed.

        Raises:
            OSError: Something could not.
        """
        if self._disk.failure is not None:
            raise _named(self._disk.failure, self.path)

    def finish(self) -> None:
        """Complete the file, and give it its name.

        Raises:
            OSError: Something could not be written; then nothing is left behind.
        """
        try:
            self.file.close()
            self.check()
            self._disk.sync()
            self._disk.close()
            os.replace(self._temporary, self.path)
        except OSError as error:
            self.drop()
            raise _named(error, self.path) from error
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Remove what was written."""
        self.file.close()
        self._disk.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> "NewHdf5File":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.drop()


class _Disk:
    """File that HDF5 writes to. It records failures and hides them from HDF5.

    HDF5 cannot close a file that it cannot write. The file stays open, and the process crashes when
    it ends. So after a failure further writes do nothing, and `failure` holds the error.

    Args:
        path: Final name, for the message.
        temporary: File to write.
    """

    def __init__(self, path: Path, temporary: Path) -> None:
        self.failure: OSError | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = temporary.open("x+b", buffering=0)
        except OSError as error:
            raise _named(error, path) from error

    def write(self, data: Any) -> int:
        """Write all of it, or record the failure."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.failure is None and len(rest):
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.failure = error
        return size

    def read(self, size: int = -1) -> bytes:
        """Read back; h5py takes for a file what has this, and then calls `readinto`."""
        return self._file.read(size)

    def readinto(self, target: Any) -> int:
        """Read back; what was never written is zero."""
        view = memoryview(target).cast("B")
        size = len(view)
        while len(view):
            count = self._file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                view[:] = bytes(len(view))
                break
            view = view[count:]
        return size

    def truncate(self, size: int) -> int:
        """Set the size, or record the failure."""
        try:
            if self.failure is None:
                self._file.truncate(size)
        except OSError as error:
            self.failure = error
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def sync(self) -> None:
        """Bring what was written to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def set_attributes(dataset: h5py.Dataset, attributes: Mapping[str, Any]) -> None:
    """Set attributes as TRIDENT stores them: None as the text "None", mappings as JSON."""
    for name, value in attributes.items():
        if value is None:
            value = "None"
        elif isinstance(value, Mapping | list | tuple):
            value = json.dumps(value, sort_keys=True)
        elif isinstance(value, os.PathLike):
            value = os.fspath(value)
        dataset.attrs[name] = value


def _named(error: OSError, path: Path) -> OSError:
    """Return the error with the file's final name instead of the hidden one."""
    if error.errno is None:
        return error
    return OSError(error.errno, os.strerror(error.errno), str(path))
