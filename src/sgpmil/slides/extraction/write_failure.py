"""A folder that cannot be written stops an extraction; a slide that cannot be read does not."""

import errno
from pathlib import Path

from sgpmil.errors import ExtractionError

__all__ = ["cannot_write", "is_write_failure"]

_OF_THE_FOLDER = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
)


def is_write_failure(error: BaseException) -> bool:
    """Say whether every further slide would fail of this.

    Args:
        error: What went wrong with a slide.
    """
    return isinstance(error, OSError) and error.errno in _OF_THE_FOLDER


def cannot_write(folder: Path, error: OSError) -> ExtractionError:
    """Make one sentence of it.

    Args:
        folder: The folder of the extraction.
        error: Why it cannot be written.
    """
    return ExtractionError(
        f"Could not write to {folder}: {error.strerror or error}. What is complete stays; run the "
        "same command again to go on."
    )
