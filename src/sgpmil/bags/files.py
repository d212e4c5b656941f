"""Files that are written whole or not at all, and digests of their content."""

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK = 2**16
_BLOCKS = 64


def content_digest(path: Path) -> str:
    """Return a digest of a file's size and content, the same for a copy of it.

    Of a file of more than four megabytes, 64 blocks of 64 kilobytes are read, evenly spaced from
    the first to the last.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        if size <= _BLOCK * _BLOCKS:
            digest.update(file.read())
        else:
            for number in range(_BLOCKS):
                file.seek(number * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def temporary_sibling(path: Path) -> Path:
    """Return a new hidden name in the same folder, so that renaming to `path` is one step."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`, renamed to `path` if the block succeeds.

    The content reaches the disk before the rename, so that a reader (and the folder after a
    crash) sees the old file or the new one and never a part. If the block fails, the temporary
    file is removed and an existing `path` stays as it was. Missing folders are created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_path(Path(folder) / "a.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     [file.name for file in Path(folder).iterdir()]
        ['a.txt']
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(final)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises:
        OSError: The file cannot be written; then nothing is left behind.
    """
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
