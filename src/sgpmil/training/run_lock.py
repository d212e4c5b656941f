"""One process at a time writes into a run.

The lock is the system's own, on an open file: it ends with the process, however that ends, so a
killed run leaves nothing to clean up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sgpmil.errors import RunFolderError

try:
    import fcntl
except ImportError:  # Windows has no such lock; a run is then not guarded.
    fcntl = None  # type: ignore[assignment]

__all__ = ["run_lock"]


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run while the block runs.

    Args:
        folder: Folder of the run; its parent is made where it is missing.

    Raises:
        RunFolderError: Another process holds the run, or nothing can be written there.
    """
    if fcntl is None:
        yield
        return
    # Beside the folder, not in it: replacing a run removes the folder.
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise RunFolderError(f"Could not write the run folder {folder}: {error}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"Another process is training into {folder}. Wait for it, or choose another folder."
            ) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
