"""One process at a time writes into a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sgpmil.errors import RunFolderError
from sgpmil.processes import FileLock

__all__ = ["run_lock"]


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run while the block runs.

    Args:
        folder: Folder of the run; its parent is created where it is missing.

    Raises:
        RunFolderError: Another process holds the run, or nothing can be written there.
    """
    # Beside the folder, not in it: replacing a run removes the folder.
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        is_ours = lock.acquire()
    except OSError as error:
        raise RunFolderError(f"Could not write the run folder {folder}: {error}.") from error
    if not is_ours:
        raise RunFolderError(
            f"Another process is training into {folder}. Wait for it, or choose another folder."
        )
    try:
        yield
    finally:
        lock.release()
